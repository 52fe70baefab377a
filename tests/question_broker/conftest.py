"""Two brokers on servers of their own, for all tests here; and the wire for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.question_broker.place import Place
from tests.question_broker.world import World


@pytest.fixture(scope="session")
def running_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place.running(tmp_path_factory.mktemp("question-broker"), brokers=2) as place:
        yield place


@pytest.fixture
async def place(running_place: Place) -> Place:
    """The servers and brokers, all running, whatever the test before has killed."""
    await running_place.again(*running_place.parts)
    return running_place


@pytest.fixture
async def w(place: Place) -> AsyncIterator[World]:
    async with World(place.nats.url) as world:
        yield world
