"""One server for all tests of permissions, provisioned as a deployment is."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from upcall_deploy.ports import HOST
from upcall_deploy.provision import provision_deployment
from upcall_shell.settings import ShellSettings

from .server import PASSWORD, User, serving

Connect = Callable[..., Awaitable[User]]


@pytest.fixture(scope="session")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Its port."""
    with serving(tmp_path_factory.mktemp("server")) as port:
        url = f"nats://{HOST}:{port}"
        settings = ShellSettings(nats_url=url, nats_user="services", nats_password=PASSWORD)
        asyncio.run(provision_deployment(settings))
        yield port


@pytest.fixture
async def connect(port: int) -> AsyncIterator[Connect]:
    """Connect as a user."""
    users: list[User] = []

    async def make(name: str, **options: Any) -> User:
        users.append(User(name))
        return await users[-1].connect(port, **options)

    yield make
    for user in users:
        await user.close()


@pytest.fixture
async def services(connect: Connect) -> User:
    return await connect("services")


@pytest.fixture
async def harness(connect: Connect) -> User:
    return await connect("shop")


@pytest.fixture
async def runner(connect: Connect) -> User:
    return await connect("runner-1")


@pytest.fixture
async def operator(connect: Connect) -> User:
    return await connect("operator")
