"""TLS by configuration: the shipped files, and the services' settings for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import make
from upcall_deploy.jetstream_api import NotReadyError
from upcall_deploy.ports import HOST
from upcall_deploy.provision import provision_deployment
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
