"""TLS by configuration: the shipped files, and the services' settings for it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import upcall
from tests.certificates import make
from tests.relay import Meet, Streams, relay
from upcall_deploy.jetstream_api import NotReadyError
from upcall_deploy.ports import HOST
from upcall_deploy.provision import provision_deployment
from upcall_shell.nats_client import SturdyClient, tls_context
from upcall_shell.settings import ShellSettings

from .server import PASSWORD, serving


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates of it for the server and for the services."""
    return make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["false", "true"])
def port(request: pytest.FixtureRequest, certificates: Path, tmp_path: Path) -> Iterator[int]:
    """A server with TLS that asks clients for a certificate, or does not."""
    variables = {
        "UPCALL_NATS_TLS_CA": f"{certificates}/ca.pem",
        "UPCALL_NATS_TLS_CERT": f"{certificates}/server.pem",
        "UPCALL_NATS_TLS_KEY": f"{certificates}/server-key.pem",
        "UPCALL_NATS_TLS_VERIFY": request.param,
    }
    with serving(tmp_path, "single-tls", more=variables) as port:
        yield port


def settings(port: int, certificates: Path, **more: str) -> ShellSettings:
    given = {
        "nats_url": f"tls://{HOST}:{port}",
        "nats_user": "services",
        "nats_password": PASSWORD,
        "nats_tls_ca": f"{certificates}/ca.pem",
    }
    return ShellSettings.model_validate({**given, **more})


async def test_services_connect_with_the_ca_and_a_certificate(port: int, certificates: Path) -> None:
    own = {
        "nats_tls_cert": f"{certificates}/services.pem",
        "nats_tls_key": f"{certificates}/services-key.pem",
    }
    assert await provision_deployment(settings(port, certificates, **own))


async def test_a_client_needs_a_certificate_where_the_server_wants_one(
    port: int, certificates: Path, request: pytest.FixtureRequest
) -> None:
    wanted = request.node.callspec.params["port"] == "true"
    made = provision_deployment(settings(port, certificates), patience=2)
    if wanted:
        with pytest.raises(NotReadyError):
            await made
    else:
        assert await made


@pytest.mark.parametrize("port", ["false"], indirect=True)
async def test_a_server_of_another_ca_is_not_spoken_to(port: int, certificates: Path) -> None:
    of_other_ca = settings(port, certificates, nats_tls_ca=f"{certificates}/other.pem")
    with pytest.raises(NotReadyError):
        await provision_deployment(of_other_ca, patience=2)


def _stuck_in_the_handshake(times: int, *, silent: bool = False) -> Meet:
    """The first connections end once the client has begun to speak TLS, or stay silent from then on."""
    left = times

    async def meet(client: Streams, server: Streams) -> bool:
        nonlocal left
        if not left:
            return True
        left -= 1
        client[1].write(await server[0].readline())
        while await client[0].read(1) and silent:
            pass
        return False

    return meet


@pytest.mark.parametrize("port", ["false"], indirect=True)
async def test_a_server_that_ends_in_the_handshake_is_tried_again(port: int, certificates: Path) -> None:
    """As when NATS is restarted just as a service starts: it must not wait for ever."""
    async with relay(port, meet=_stuck_in_the_handshake(3)) as gate:
        given = settings(gate, certificates)
        client = SturdyClient()
        async with asyncio.timeout(30):
            await client.connect(
                given.nats_servers(),
                user=given.nats_user,
                password=given.nats_password,
                tls=tls_context(given),
                reconnect_time_wait=0,
                max_reconnect_attempts=-1,
            )
        assert client.is_connected
        await client.close()


@pytest.mark.parametrize("port", ["false"], indirect=True)
@pytest.mark.parametrize("silent", [False, True], ids=["ends", "silent"])
async def test_who_never_gets_through_the_handshake_is_told_so(
    port: int, certificates: Path, silent: bool
) -> None:
    """Neither provisioning nor a harness waits any longer than it was told to."""
    async with relay(port, meet=_stuck_in_the_handshake(10_000, silent=silent)) as gate:
        given = settings(gate, certificates)
        with pytest.raises(NotReadyError):
            await provision_deployment(given, patience=0.5)
        options = {"user": given.nats_user, "password": given.nats_password, "tls": tls_context(given)}
        with pytest.raises(upcall.ConnectError):
            await upcall.connect(given.nats_url, timeout=0.5, **options)
