"""One message of a stream: found by its time, and removed."""

import uuid

from nats.aio.client import Client

from upcall_contracts import streams, subjects
from upcall_shell.jetstream import StreamClient


async def test_first_message_from_a_time_on(nc: Client) -> None:
    stream, subject = StreamClient(lambda: nc, streams.DISPATCH), subjects.dispatch(uuid.uuid4().hex)
    assert await stream.next_since(subject, 0) is None
    first = await stream.put(subject, b"1")
    before = await stream.next_since(subject, 0)
    assert before is not None
    while await stream.now() <= before.time_ms:
        pass  # the next one is of another millisecond
    second = await stream.put(subject, b"2")

    found = [await stream.next_since(subject, at) for at in (before.time_ms, before.time_ms + 1)]
    assert [each.seq if each is not None else None for each in found] == [first, second]
    assert await stream.next_since(subject, before.time_ms + 60_000) is None


async def test_what_is_removed_is_gone_and_again_is_no_error(nc: Client) -> None:
    """Also once the stream begins behind it, and where nothing has ever been."""
    stream, subject = StreamClient(lambda: nc, streams.DISPATCH), subjects.dispatch(uuid.uuid4().hex)
    first, second, third = [await stream.put(subject, body) for body in (b"1", b"2", b"3")]
    for seq in (second, second, first, first, third + 1000):
        await stream.delete(seq)
    left = await stream.next(subject, 1)
    assert left is not None
    assert left.seq == third
