"""Deployments in containers: one for all tests that leave it alive."""

import shutil
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.blackbox.wire import Wire

from .stack import Stack, a_directory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/containers" in item.path.as_posix():
            item.add_marker(pytest.mark.containers)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The shipped Compose file, with two instances of each service."""
    directory = a_directory()
    with Stack(directory, UPCALL_INSTANCES="2").running() as stack:
        yield stack
    shutil.rmtree(directory, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="function")
async def w(stack: Stack) -> AsyncIterator[Wire]:
    """A connection that may be anyone, for tests of the contract."""
    wire = Wire(await stack.connect("everyone"))
    yield wire
    await wire.close()
