"""The contract in containers: tests/blackbox/test_questions_ends.py."""

import pytest

from tests.blackbox import test_questions_ends

from .contract import taken_from

pytestmark = pytest.mark.asyncio(loop_scope="function")
globals().update(taken_from(test_questions_ends))
