"""The contract in containers: tests/blackbox/test_sessions_and_reports.py."""

import pytest

from tests.blackbox import test_sessions_and_reports

from .contract import taken_from

pytestmark = pytest.mark.asyncio(loop_scope="function")
globals().update(taken_from(test_sessions_and_reports))
