"""The contract in containers: tests/blackbox/test_scenarios_reports.py."""

import pytest

from tests.blackbox import test_scenarios_reports

from .contract import taken_from

pytestmark = [pytest.mark.core, pytest.mark.asyncio(loop_scope="function")]
globals().update(taken_from(test_scenarios_reports))
