"""`up` against real servers: a nats-server, a Valkey, and services that only answer /readyz."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import nats
import pytest
import redis

from tests.deploy.running import Up, alive, flat, running, until_gone


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_up_json_says_where_all_is_and_after_the_end_that_nothing_runs(data: Path) -> None:
    with running(data) as up:
        state = up.until_ready()
        assert list(state) == ["nats", "redis", "ready", "pids"]
        assert list(state["pids"]) == ["nats", "redis", "session", "question_broker", "reporter"]
        assert [len(state["pids"][name]) for name in ("session", "question_broker", "reporter")] == [1, 1, 1]
        pids = up.pids()
        assert len(pids) == len(set(pids)) == len(alive(pids)) == 5
        assert redis.Redis.from_url(state["redis"]).ping()
        assert up.stop(signal.SIGINT) == 0
        for url in (state["nats"], state["redis"]):
            assert url in up.said
        assert up.state == {
            "nats": state["nats"],
            "redis": state["redis"],
            "ready": False,
            "pids": {"nats": None, "redis": None, "session": [], "question_broker": [], "reporter": []},
        }
        assert not alive(pids)


def test_instances_runs_that_many_of_each_service(data: Path) -> None:
    with running(data, env={"INSTANCES": "2"}) as up:
        pids = up.until_ready()["pids"]
        assert [len(pids[name]) for name in ("session", "question_broker", "reporter")] == [2, 2, 2]
        assert up.stop(signal.SIGTERM) == 0


def test_a_part_that_dies_comes_back_at_the_same_address(data: Path) -> None:
    with running(data) as up:
        before = up.until_ready()
        for name in ("nats", "redis", "session", "reporter"):
            dead = before["pids"][name] if name in ("nats", "redis") else before["pids"][name][0]
            os.kill(dead, signal.SIGKILL)
            after = up.until(lambda state, dead=dead: state["ready"] and dead not in flat(state["pids"]))
            assert (after["nats"], after["redis"]) == (before["nats"], before["redis"])
            before = after
        assert up.process.poll() is None
        assert redis.Redis.from_url(before["redis"]).ping()
        assert up.stop() == 0


def test_a_service_that_is_not_ready_is_not_called_ready(data: Path, tmp_path: Path) -> None:
    sick = tmp_path / "sick"
    with running(data, env={"UPCALL_FAKE_SICK": str(sick)}) as up:
        pids = up.until_ready()["pids"]
        sick.touch()
        assert up.until(lambda state: not state["ready"])["pids"] == pids
        sick.unlink()
        assert up.until_ready()["pids"] == pids
        assert up.stop() == 0


def test_started_again_all_is_there_at_the_same_addresses(data: Path) -> None:
    with running(data) as up:
        first = up.until_ready()
        asyncio.run(_publish(first["nats"]))
        redis.Redis.from_url(first["redis"]).set("kept", "yes")
        assert up.stop() == 0
    with running(data) as up:
        second = up.until_ready()
        assert (second["nats"], second["redis"]) == (first["nats"], first["redis"])
        assert asyncio.run(_stored(second["nats"])) == 1
        assert redis.Redis.from_url(second["redis"]).get("kept") == b"yes"
        assert up.stop() == 0


def test_a_second_up_on_the_same_directory_is_refused_and_changes_nothing(data: Path) -> None:
    with running(data) as up:
        state = up.until_ready()
        second = Up(data)
        assert second.process.wait(10) == 2
        assert f"in use by another `up` (pid {up.process.pid})" in second.said
        assert up.state == state
        assert len(alive(up.pids())) == 5
        assert up.stop() == 0


def test_nothing_outlives_a_supervisor_that_is_killed_and_the_next_takes_over(data: Path) -> None:
    with running(data) as up:
        first = up.until_ready()
        pids = up.pids()
        up.stop(signal.SIGKILL)
        with running(data) as again:
            second = again.until(lambda state: state["ready"] and not set(flat(state["pids"])) & set(pids))
            assert (second["nats"], second["redis"]) == (first["nats"], first["redis"])
            until_gone(pids)
            assert again.stop() == 0


def test_a_second_ctrl_c_ends_at_once_what_does_not_want_to_end(data: Path) -> None:
    with running(data, env={"UPCALL_FAKE_STUBBORN": "1"}) as up:
        up.until_ready()
        pids = up.pids()
        up.process.send_signal(signal.SIGINT)
        up.until(lambda state: not state["ready"])
        with pytest.raises(subprocess.TimeoutExpired):
            up.process.wait(0.5)
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(2) == 130
        until_gone(pids)
        assert up.state["ready"] is False
        assert not [pid for pid in flat(up.state["pids"]) if pid]


def test_given_ports_are_taken_and_a_taken_port_is_refused(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        refused = Up(data, "--nats-port", str(taken))
        assert refused.process.wait(10) == 2
        assert f"port {taken} of 127.0.0.1 is in use, so nats can't have it" in refused.said
    with running(data, "--nats-port", str(taken)) as up:
        assert urlsplit(up.until_ready()["nats"]).port == taken
        assert up.stop() == 0


def test_tied_to_its_parent_it_ends_in_good_order_when_that_is_killed(data: Path) -> None:
    starter = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, {str(Path(__file__).with_name('fake_up.py'))!r},"
        f" '--data', {str(data)!r}, '--with-parent'], stdout=subprocess.DEVNULL);"
        "time.sleep(60)"
    )
    watching = Up(data / "unused", "--help")
    assert watching.process.wait(10) == 0
    watching.data = data
    with subprocess.Popen([sys.executable, "-c", starter]) as parent:
        watching.process = parent
        watching.until_ready()
        pids = watching.pids()
        parent.kill()
        parent.wait()
    until_gone(pids)


def test_one_signal_that_comes_twice_is_one(data: Path) -> None:
    with running(data) as up:
        up.until_ready()
        up.process.send_signal(signal.SIGTERM)
        up.until(lambda state: not state["ready"])
        assert up.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("UPCALL_SYNC_INTERVAL", "sometimes", "give always, or a duration such as 2m"),
        ("INSTANCES", "none", "give a number from 1 to 16"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(data: Path, setting: str, value: str, told: str) -> None:
    refused = Up(data, env={setting: value})
    assert refused.process.wait(10) == 2
    assert told in refused.said
    assert "Traceback" not in refused.said


async def _publish(url: str) -> None:
    connection = await nats.connect(url)
    await connection.jetstream().publish("dead.test", b"{}")
    await connection.close()


async def _stored(url: str) -> int:
    connection = await nats.connect(url)
    info = await connection.jetstream().stream_info("DEAD")
    await connection.close()
    return info.state.messages
