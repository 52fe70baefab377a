"""Settings of the whole test run.

Hypothesis: `--hypothesis-profile long` looks longer. A slow machine is no failing test, so nothing has a
deadline; in CI the examples are the same each time.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile("long", settings.get_profile("default"), max_examples=2000, stateful_step_count=100)
settings.load_profile("ci" if os.environ.get("CI") else "default")
