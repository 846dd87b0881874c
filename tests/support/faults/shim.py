"""Builds ``disk_shim.c`` and preloads it into a program: file operations are recorded, or fail at a
chosen call.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.running.sanitizer import SANITIZED

SOURCE = Path(__file__).with_name("disk_shim.c")
# Classes of calls, as in disk_shim.c.
READS, WRITES, SYNCS, NAMES, OPENS, SPACE = 1, 2, 4, 8, 16, 32
CHANGES = WRITES | SYNCS | NAMES | OPENS | SPACE
SHORT = 0  # instead of an errno: a call that does half of its work

_CONTROL = struct.Struct("=qqqqqq256s")


def library() -> Path:
    """The shim, compiled once for each version of its source; skips the test without a compiler,
    and under the sanitizers.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if SANITIZED:
        pytest.skip("the sanitizers intercept the calls that the shim intercepts")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the shim for disk calls needs Linux and a C compiler")
    version = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"kbroker-shim-{os.getuid()}-{version}.so"
    if not built.exists():
        fresh = built.with_suffix(f".{os.getpid()}")
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(fresh), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        fresh.rename(built)
    return built


def shimmed(
    root: Path, *, log: Path | None = None, control: FailingCall | None = None
) -> dict[str, str]:
    """Environment variables for a program whose calls below ``root`` the shim intercepts."""
    variables = {"LD_PRELOAD": str(library()), "KBROKER_SHIM_ROOT": str(root.resolve())}
    if log is not None:
        variables["KBROKER_SHIM_LOG"] = str(log)
    if control is not None:
        variables["KBROKER_SHIM_FAIL"] = str(control.path)
    return variables


def broker_command(variables: dict[str, str]) -> list[str]:
    """For ``Broker(command=...)``: runs the broker under the shim."""
    words = [f"{name}={value}" for name, value in variables.items()]
    return ["env", *words, sys.executable, "-m", "kbroker.cli.start"]


class FailingCall:
    """Chooses the failing call, in every process with the shim, from the next one on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(_CONTROL.size))

    def arm(
        self, at: int, error: int = errno.EIO, *, classes: int = CHANGES, lasting: bool = True
    ) -> None:
        """Fail the ``at``-th call of the classes from now on; lasting: and every later one.

        at: 0 only counts.
        """
        self._write(_CONTROL.pack(0, at, error, lasting, classes, 0, b""))

    def disarm(self) -> None:
        """Calls work again."""
        self._write(bytes(_CONTROL.size))

    def _write(self, data: bytes) -> None:
        with open(self.path, "r+b", buffering=0) as file:
            file.write(data)

    @property
    def calls(self) -> int:
        """Calls of the classes since it was armed."""
        return int(self._fields()[0])

    @property
    def hits(self) -> int:
        """The number of failed calls."""
        return int(self._fields()[5])

    @property
    def what(self) -> str:
        """The first that failed, and its file."""
        return bytes(self._fields()[6]).split(b"\0")[0].decode(errors="replace")

    def _fields(self) -> tuple[int, ...]:
        return _CONTROL.unpack(self.path.read_bytes())
