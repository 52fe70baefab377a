"""Two brokers on servers of their own, for all tests here; and the wire for each test."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.question_broker.place import Place
from tests.question_broker.world import World


@pytest.fixture(scope="session")
def running_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("question-broker"), brokers=2)
    try:
        asyncio.run(place.begin())
        yield place
    finally:
        place.end()


@pytest.fixture
async def place(running_place: Place) -> Place:
    """The servers and brokers, all running, whatever the test before has killed."""
    await running_place.again(*running_place.parts)
    return running_place


@pytest.fixture
async def w(place: Place) -> AsyncIterator[World]:
    async with World(place.nats.url) as world:
        yield world
