"""A nats-server and a Valkey for the tests of the plumbing; no service runs on them."""

from collections.abc import AsyncIterator, Iterator

import pytest
from nats.aio.client import Client

from tests.question_broker.place import Place
from upcall_shell.logs import configure_logs

configure_logs("test", "CRITICAL", as_json=True)  # else each failure that a test wants is drawn in full


@pytest.fixture(scope="session")
def running_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place.running(tmp_path_factory.mktemp("shell"), brokers=0) as place:
        yield place


@pytest.fixture
async def servers(running_servers: Place) -> Place:
    """Both servers, running, whatever the test before has done to them."""
    await running_servers.again(*running_servers.parts)
    return running_servers


@pytest.fixture
async def nc(servers: Place) -> AsyncIterator[Client]:
    async def quiet(_: Exception) -> None:
        return None

    client = Client()
    await client.connect(servers.nats.url, max_reconnect_attempts=-1, reconnect_time_wait=0, error_cb=quiet)
    yield client
    await client.close()
