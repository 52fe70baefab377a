"""Answers GET /readyz with 200, or with 503 while the file named by UPCALL_FAKE_SICK exists.

With UPCALL_FAKE_STUBBORN it does not end on SIGTERM.
"""

import os
import signal
import socket
import sys


def serve() -> None:
    server = socket.create_server(("127.0.0.1", int(os.environ["UPCALL_HTTP_PORT"])), backlog=16)
    sick = os.environ.get("UPCALL_FAKE_SICK", "")
    print("serving", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            line = connection.recv(4096).split(b"\r\n")[0]
            well = line.startswith(b"GET /readyz ") and not (sick and os.path.exists(sick))  # noqa: PTH110 - fast start
            connection.sendall(b"HTTP/1.1 %s\r\n\r\n" % (b"200 OK" if well else b"503 Not Ready"))


if __name__ == "__main__":
    stubborn = os.environ.get("UPCALL_FAKE_STUBBORN")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else lambda *_: sys.exit(0))
    serve()
