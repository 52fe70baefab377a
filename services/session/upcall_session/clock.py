"""The wall clock, read in one place: decisions are handed the time."""

import time


def now_ms() -> int:
    """Epoch ms."""
    return time.time_ns() // 1_000_000
