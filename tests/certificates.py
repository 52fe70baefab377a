"""A CA of a test's own, and certificates of it."""

import subprocess
from pathlib import Path

NAMES = "IP:127.0.0.1,DNS:nats,DNS:nats-2,DNS:nats-3"
"""Where tests and containers reach a server."""


def make(at: Path) -> Path:
    """`ca.pem`, another CA's `other.pem`; `server.pem` and `services.pem` of the first; with their keys."""
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for ca in ("ca", "other"):
        files = ["-keyout", f"{at}/{ca}-key.pem", "-out", f"{at}/{ca}.pem"]
        _openssl("req", "-x509", *new, "-subj", f"/CN={ca}", *files)
    (at / "names").write_text(f"subjectAltName={NAMES}\n")
    for name in ("server", "services"):
        files = ["-keyout", f"{at}/{name}-key.pem", "-out", f"{at}/{name}.csr"]
        _openssl("req", *new, "-subj", f"/CN={name}", *files)
        signed = ["-CA", f"{at}/ca.pem", "-CAkey", f"{at}/ca-key.pem", "-CAcreateserial"]
        files = ["-in", f"{at}/{name}.csr", "-extfile", f"{at}/names", "-out", f"{at}/{name}.pem"]
        _openssl("x509", "-req", *signed, *files)
    return at


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)
