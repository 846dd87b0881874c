"""A self-signed certificate for 127.0.0.1 and localhost, as PEM files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

OPENSSL = shutil.which("openssl")


class Certificate(NamedTuple):
    """key: PKCS #8, encrypted if there is a password. both: key and certificate in one file."""

    certificate: Path
    key: Path
    both: Path


def make(place: Path, name: str, password: str | None = None) -> Certificate:
    assert OPENSSL is not None
    made = Certificate(place / f"{name}.crt", place / f"{name}.key", place / f"{name}.pem")
    command = [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-days", "2"]
    command += ["-keyout", str(made.key), "-out", str(made.certificate), "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command += ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
    subprocess.run(command, check=True, capture_output=True)
    made.both.write_text(made.key.read_text() + made.certificate.read_text())
    return made
