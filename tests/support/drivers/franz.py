"""franz-go, the Go client: programs of ``tests/go``, compiled into ``.cache/go``."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from fcntl import LOCK_EX, flock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "tests" / "go"
CACHE = ROOT / ".cache" / "go"


def go_missing() -> str:
    """The reason why Go tests cannot run here; empty if they can."""
    return "" if shutil.which("go") else "not installed: go"


def program(name: str) -> Path:
    """The compiled program of ``tests/go/<name>``; its modules are downloaded the first time."""
    sources = sorted(path for path in (SOURCES / name).iterdir() if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    CACHE.mkdir(parents=True, exist_ok=True)
    built = CACHE / f"{name}-{digest}"
    with open(CACHE / f"{name}.lock", "w") as lock:
        flock(lock, LOCK_EX)
        if not built.exists():
            partial = built.with_suffix(".partial")
            command = ["go", "build", "-o", str(partial), "."]
            done = subprocess.run(command, cwd=SOURCES / name, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"go build failed:\n{done.stdout}{done.stderr}")
            os.rename(partial, built)
    return built
