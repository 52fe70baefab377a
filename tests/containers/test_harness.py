"""A harness in a container of its own, with credentials that allow it to be one session and nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .stack import IMAGES, REPOSITORY, Stack, docker

HERE = Path(__file__).parent

pytestmark = pytest.mark.core


def arguments(stack: Stack, user: str) -> list[str]:
    """What its container gets: the network, the client, and its user's credentials."""
    return [
        f"--network={stack.network}",
        "--read-only",
        f"--volume={REPOSITORY / 'client'}:/client:ro",
        f"--volume={HERE / 'harness.py'}:/harness.py:ro",
        f"--volume={REPOSITORY / 'tests' / 'settling.py'}:/tests/settling.py:ro",
        "--env=PYTHONPATH=/client",
        "--env=UPCALL_NATS_URL=nats://nats:4222",
        f"--env=NATS_USER={user}",
        f"--env=NATS_PASSWORD={stack.password(user)}",
        stack.environment.get("UPCALL_IMAGE", IMAGES["UPCALL_IMAGE"]),
        "python",
        "/harness.py",
    ]


@pytest.fixture
def runner(stack: Stack) -> Iterator[str]:
    """A runner in a container of its own, too."""
    container = docker("run", "--detach", *arguments(stack, "shop-runner"), "runner").strip()
    try:
        yield container
    finally:
        docker("rm", "--force", container)


def harness(stack: Stack, part: str) -> dict[str, object]:
    return json.loads(docker("run", "--rm", *arguments(stack, "shop"), part, timeout=60))


@pytest.mark.parametrize("part", ["calls", "inbox"])
def test_it_asks_answers_and_hears_the_report(stack: Stack, runner: str, part: str) -> None:
    try:
        report = str(harness(stack, part)["report"])
    except Exception as error:
        said = docker("logs", runner, check=False)
        raise AssertionError(f"{error}\nrunner: {said}\n{stack.logs('session')}") from error
    assert 'state="completed"' in report
    assert "It uses PostgreSQL." in report


def test_what_it_may_not_say_is_refused_by_nats(stack: Stack) -> None:
    refused = harness(stack, "forge")["refused"]
    assert isinstance(refused, list)
    assert len(refused) == 3
    assert all("permissions violation" in line for line in refused)
