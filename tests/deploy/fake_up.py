"""`up` with services that only answer /readyz, so that a test of `up` waits for nothing else."""

import sys
from pathlib import Path

from upcall_deploy.deployment import ServiceSpec
from upcall_deploy.up import main

FAKE = (sys.executable, "-S", "-E", str(Path(__file__).with_name("fake_service.py")))

if __name__ == "__main__":
    sys.exit(main(services=[ServiceSpec(name, FAKE) for name in ("session", "question_broker", "reporter")]))
