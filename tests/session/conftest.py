"""Worlds with something in them."""

from __future__ import annotations

import pytest

from tests.session.world import World


@pytest.fixture
def w() -> World:
    """A world with a root session that is busy, called P."""
    world = World()
    world.open("P")
    world.start("P", task="Lead.")
    return world


@pytest.fixture
def child(w: World) -> str:
    """A self-hosted child of P, in the background, with a running run."""
    _, ids = w.spawn("P", host="self")
    return ids.session_id


@pytest.fixture
def hosted(w: World) -> str:
    """A runner-hosted child of P that a runner has claimed."""
    _, ids = w.spawn("P", host="runner")
    w.claim(ids.session_id, "runner-1")
    return ids.session_id
