"""The black-box tests of the contract, to be run against containers: those that need only a connection."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


def taken_from(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The tests of a module that take the shared deployment's connection `w`, and parameters, and no more."""
    return {
        name: test
        for name, test in vars(module).items()
        if name.startswith("test_")
        and "w" in (takes := inspect.signature(test).parameters)
        and _fits(test, takes)
    }


def _fits(test: Callable[..., Any], takes: Any) -> bool:
    parameters = {
        name.strip()
        for mark in getattr(test, "pytestmark", [])
        if mark.name == "parametrize"
        for name in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
    }
    return set(takes) - parameters == {"w"}
