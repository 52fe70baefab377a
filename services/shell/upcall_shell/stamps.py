"""What JetStream says of a delivery, to the millisecond that rules are decided by."""

from nats.aio.msg import Msg

_SHORT = 9  # tokens of an ack subject without domain and account


def stored_at(message: Msg) -> int:
    """When JetStream stored a delivered message, in epoch ms.

    Read from the ack subject, since the client's own reading goes through a float.
    """
    tokens = message.reply.split(".")
    return int(tokens[7] if len(tokens) == _SHORT else tokens[9]) // 1_000_000
