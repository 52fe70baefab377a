"""What goes wrong with the infrastructure, as exceptions. A refusal is a value and never one of these."""


class Unavailable(Exception):
    """NATS or JetStream did not answer, or the outcome of a write is unknown: try the message again later."""


class Conflict(Exception):
    """Another decision on the aggregate came first: load it again and decide again."""

    def __init__(self, guard: str, expected: int) -> None:
        super().__init__(f"{guard} has moved on from sequence {expected}")
        self.guard = guard
        self.expected = expected


class TooLarge(ValueError):
    """A message is over the server's max_payload, and will be the next time, too."""

    def __init__(self, subject: str, size: int) -> None:
        super().__init__(f"{subject}: {size} bytes are too many for a message")
        self.size = size
