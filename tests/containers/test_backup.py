"""Back up and restore as docs/operating.md tells it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.wire import OPERATOR, Wire

from .stack import IMAGES, SERVICES, Stack, a_directory, docker

pytestmark = [
    pytest.mark.asyncio(loop_scope="function"),
    # nats-py leaves the socket of a server that has gone to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def own() -> Iterator[Stack]:
    """A deployment of this test's own."""
    directory = a_directory()
    with Stack(directory).running() as stack:
        yield stack
    shutil.rmtree(directory, ignore_errors=True)


def back_up(stack: Stack, to: Path) -> None:
    stack.do("stop", "nats")
    _tar(
        stack,
        f"{stack.project}_nats:/data:ro",
        f"{to}:/backup",
        "-czf",
        "/backup/nats.tgz",
        "-C",
        "/data",
        ".",
    )
    stack.do("start", "nats")


def restore(stack: Stack, of: Path) -> None:
    stack.do("down", "--volumes")
    stack.do("create", "nats")
    _tar(stack, f"{stack.project}_nats:/data", f"{of}:/backup:ro", "-xzf", "/backup/nats.tgz", "-C", "/data")
    stack.do("up", "--detach", "--wait")


def _tar(stack: Stack, data: str, backup: str, *arguments: str) -> None:
    base = stack.environment.get("BASE_IMAGE", IMAGES["BASE_IMAGE"])
    docker("run", "--rm", "--volume", data, "--volume", backup, base, "tar", *arguments)


async def test_what_was_backed_up_is_there_again_and_goes_on(own: Stack, tmp_path: Path) -> None:
    w = Wire(await own.connect("everyone"))
    parent, child = await w.family()
    done = await parent.spawn()
    await done.settle(answer="It was done before the backup.")
    await w.until_item(parent.session_id, done.period_id)
    question = await child.ask()
    back_up(own, tmp_path)
    own.until_ready(*SERVICES)
    # What comes after the backup is lost with what it is restored into.
    later = await w.insist(
        parent.caller, "question.answer", request_id=question["request_id"], answer="Of later."
    )
    assert later["question"]["status"] == "answered"
    await w.close()

    restore(own, tmp_path)
    w = Wire(await own.connect("everyone"))
    inbox = {item["item"]["item_id"] for item in await w.inbox(parent.session_id)}
    assert inbox == {question["request_id"], done.period_id}
    listed = await w.query(OPERATOR, "question.list", scope="tree", status="waiting")
    assert [waiting["request_id"] for waiting in listed["questions"]] == [question["request_id"]]
    parent.wire = child.wire = w
    answered = await parent.answer(question["request_id"], "PostgreSQL")
    assert (answered["status"], answered["expires_at"]) == ("answered", question["expires_at"])
    await child.settle(answer="It uses PostgreSQL.")
    item = await w.until_item(parent.session_id, child.period_id)
    assert "It uses PostgreSQL." in item["item"]["text"]
    assert await w.ends(child.run_id, question["request_id"]) == ["answered"]
    await w.close()
