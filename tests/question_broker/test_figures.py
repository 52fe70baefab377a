"""The gauges of open questions, and of what the broker needs, as two instances show them."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime

import pytest
from redis.asyncio import Redis

from tests.question_broker.place import Place
from tests.question_broker.world import World, eventually, uid
from tests.scraping import value
from upcall_contracts import keys

pytestmark = pytest.mark.xdist_group("question_broker_figures")
Seen = list[float | None]


@pytest.fixture(scope="module")
def running_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Of its own: nobody else's questions are open."""
    settings = {"UPCALL_FIGURES_MS": "50"}
    place = Place(tmp_path_factory.mktemp("question-broker-figures"), brokers=2, settings=settings)
    try:
        asyncio.run(place.begin())
        yield place
    finally:
        place.end()


@pytest.fixture
async def redis(place: Place) -> AsyncIterator[Redis]:
    async with Redis.from_url(place.redis.url) as redis:
        yield redis


async def _seen(place: Place, name: str, **labels: str) -> Seen:
    return [await value(broker.url, name, **labels) for broker in place.brokers]


async def _until(place: Place, name: str, wanted: float, **labels: str) -> None:
    """Until every instance shows it."""
    await eventually(lambda: _seen(place, name, **labels), lambda seen: seen == [wanted] * len(seen))


def _asked(question: dict[str, str]) -> float:
    return datetime.fromisoformat(question["created_at"]).timestamp()


async def test_every_instance_shows_all_open_questions(place: Place, w: World) -> None:
    """Whoever was asked, and whoever ended them."""
    _, one = await w.family()
    parent, other = await w.family()
    await one.ask()
    question = await other.ask()
    await _until(place, "upcall_questions_open", 2)

    await w.do(parent.id, "question.answer", request_id=question["request_id"], answer="yes")
    await _until(place, "upcall_questions_open", 1)

    await one.settles()
    await _until(place, "upcall_questions_open", 0)
    await _until(place, "upcall_question_oldest_open_seconds", 0)


async def test_the_age_is_that_of_the_oldest(place: Place, w: World) -> None:
    """And of the next one when that has ended."""
    (_, first), (_, second) = await w.family(), await w.family()
    oldest, newest = _asked(await first.ask()), _asked(await second.ask())
    name = "upcall_question_oldest_open_seconds"

    await _until(place, "upcall_questions_open", 2)
    began = time.time()
    seen = await eventually(
        lambda: _seen(place, name), lambda ages: all(age and age >= began - oldest for age in ages)
    )
    assert all(age is not None and age <= time.time() - oldest for age in seen)

    await first.settles()
    await _until(place, "upcall_questions_open", 1)
    seen = await _seen(place, name)
    assert all(age is not None and age <= time.time() - newest for age in seen)
    await second.settles()
    await _until(place, "upcall_questions_open", 0)


async def test_what_is_left_in_the_index_is_not_counted(place: Place, w: World, redis: Redis) -> None:
    """An end that never reached Redis, or a tree that was purged, would else look like a question of 1970."""
    _, child = await w.family()
    await child.ask()
    await redis.zadd(keys.questions_open(), {uid("q_"): 1, uid("q_"): 2})

    await eventually(lambda: redis.zcard(keys.questions_open()), lambda count: count == 1)
    await _until(place, "upcall_questions_open", 1)
    assert all(
        age is not None and age < 1e6 for age in await _seen(place, "upcall_question_oldest_open_seconds")
    )
    await child.settles()
    await _until(place, "upcall_questions_open", 0)


async def test_without_redis_they_are_unknown_and_the_broker_serves(place: Place, w: World) -> None:
    """A stale number is worse than none; the failures are counted, and nothing else happens."""
    _, child = await w.family()
    await child.ask()
    await _until(place, "upcall_questions_open", 1)
    place.redis.kill()

    await eventually(
        lambda: _seen(place, "upcall_questions_open"),
        lambda seen: all(each is not None and math.isnan(each) for each in seen),
    )
    await _until(place, "upcall_ready", 0, check="redis")
    failed = await _seen(place, "upcall_figures_failed_total", figure="questions")
    assert all(each is not None and each > 0 for each in failed)
    _, another = await w.family()
    await another.ask()

    await place.again(place.redis)
    await _until(place, "upcall_questions_open", 2)
    await _until(place, "upcall_ready", 1, check="redis")
    await child.settles()
    await another.settles()
    await _until(place, "upcall_questions_open", 0)


async def test_how_far_behind_the_consumers_are(place: Place, w: World) -> None:
    """What waits while no instance is there shows as pending as soon as one is, until it is done."""
    labels = {"stream": "COMMANDS", "consumer": "question_broker"}
    for name in ("upcall_consumer_pending", "upcall_consumer_ack_pending"):
        await _until(place, name, 0, **labels)
    (floor, _) = await _seen(place, "upcall_consumer_ack_floor", **labels)
    _, child = await w.family()
    await child.ask()

    assert floor is not None
    await eventually(
        lambda: _seen(place, "upcall_consumer_ack_floor", **labels),
        lambda seen: all(each is not None and each > floor for each in seen),
    )
    await child.settles()
    await _until(place, "upcall_questions_open", 0)


async def test_how_large_the_log_is(place: Place, w: World) -> None:
    """As JetStream has it, beside the size over which nothing new is opened."""
    info = await w.js.stream_info("LOG")
    await eventually(
        lambda: _seen(place, "upcall_stream_bytes", stream="LOG"),
        lambda seen: all(each is not None and each >= info.state.bytes > 0 for each in seen),
    )
    assert await _seen(place, "upcall_log_limit_bytes") == [1e10, 1e10]
