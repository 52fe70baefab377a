"""Whether the service in this container answers on a path of its HTTP port; the image's health check.

python -m upcall_deploy.healthcheck [/readyz]
"""

import os
import sys
from http.client import HTTPConnection, HTTPException

TIMEOUT_S = 2.0


def answers(port: int, path: str) -> bool:
    """Whether GET of the path is 200."""
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def main() -> int:
    """0: it does. 1: it does not."""
    path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
    return 0 if answers(int(os.environ.get("UPCALL_HTTP_PORT") or "8080"), path) else 1


if __name__ == "__main__":
    sys.exit(main())
