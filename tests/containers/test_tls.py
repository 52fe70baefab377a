"""The shipped Compose files for TLS: the main job, and who doesn't get in."""

import shutil
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nats.errors
import pytest

from tests import certificates
from tests.blackbox.wire import Wire

from .stack import Stack, a_directory

pytestmark = pytest.mark.asyncio(loop_scope="function")

FILES = {"tls": ["compose.tls.yaml"], "mtls": ["compose.tls.yaml", "compose.mtls.yaml"]}


@dataclass(frozen=True)
class Secured:
    """A deployment whose NATS speaks TLS."""

    stack: Stack
    keys: Path
    wants_certificates: bool

    def context(self, ca: str = "ca", *, certificate: bool) -> ssl.SSLContext:
        """What a client trusts and shows."""
        context = ssl.create_default_context(cafile=self.keys / f"{ca}.pem")
        if certificate:
            context.load_cert_chain(self.keys / "services.pem", self.keys / "services-key.pem")
        return context

    async def connect(self, context: ssl.SSLContext) -> Wire:
        """A connection that may be anyone."""
        return Wire(await self.stack.connect("everyone", tls=context, allow_reconnect=False))


@pytest.fixture(scope="module", params=FILES)
def secured(request: pytest.FixtureRequest) -> Iterator[Secured]:
    directory = a_directory()
    keys = directory / "tls"
    keys.mkdir()
    certificates.make(keys)
    stack = Stack(directory, *FILES[request.param], UPCALL_TLS_DIR=str(keys))
    # The services' user is another one than that of the tests.
    (keys / "services-key.pem").chmod(0o644)
    with stack.running():
        yield Secured(stack, keys, request.param == "mtls")
    shutil.rmtree(directory, ignore_errors=True)


async def test_a_child_asks_is_answered_and_reported(secured: Secured) -> None:
    w = await secured.connect(secured.context(certificate=secured.wants_certificates))
    parent, child = await w.family()
    question = await child.ask()
    await w.until_item(parent.session_id, question["request_id"])
    answered = await parent.answer(question["request_id"], "PostgreSQL")
    assert answered["status"] == "answered"
    await child.settle(answer="It uses PostgreSQL.")
    item = await w.until_item(parent.session_id, child.period_id)
    assert "It uses PostgreSQL." in item["item"]["text"]
    await w.close()


async def test_a_client_without_a_certificate_gets_in_only_where_none_is_wanted(secured: Secured) -> None:
    try:
        w = await secured.connect(secured.context(certificate=False))
    except (ssl.SSLError, nats.errors.Error, OSError):
        assert secured.wants_certificates
    else:
        assert not secured.wants_certificates
        await w.close()


async def test_a_client_of_another_ca_speaks_to_nobody(secured: Secured) -> None:
    with pytest.raises((ssl.SSLError, nats.errors.Error, OSError)):
        await secured.connect(secured.context("other", certificate=True))
