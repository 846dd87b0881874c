"""Brokers besides Apache Kafka that compare.py shows as further columns on request.

kfake is the in-memory broker that Go programs are tested with (franz-go); it is built by Go, once,
into .cache/. Tansu (Rust, with its memory engine) is run if there is a ``tansu`` on the PATH, as
from ``cargo install tansu --features dynostore``. Neither writes to a disk, and no bar is against
them.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from perf.brokers import BROKERS, Broker
from perf.kafka_distribution import ROOT

SOURCES = ROOT / "perf" / "kfake"


def kfake_program(cache: Path | None = None) -> Path:
    """The built program; the first call runs Go, which needs the network. Raises RuntimeError."""
    home = cache or ROOT / ".cache" / "kfake"
    program = home / "kfake"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(path.stat().st_mtime for path in SOURCES.iterdir())
        if program.exists() and program.stat().st_mtime >= newest:
            return program
        if shutil.which("go") is None:
            raise RuntimeError("kfake needs go on the PATH")
        command = ["go", "build", "-o", str(program), "."]
        done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"go failed with {done.returncode}:\n{done.stderr[-2000:]}")
        program.touch()
    return program


class KfakeBroker(Broker):
    """kfake, with one broker."""

    name = "kfake"

    def prepare(self) -> None:
        kfake_program()

    def command(self) -> list[str]:
        return [str(kfake_program()), str(self.port)]


class TansuBroker(Broker):
    """Tansu, with its memory engine."""

    name = "tansu"

    def __init__(
        self, place: Path | str | None = None, overrides: dict[str, str] | None = None
    ) -> None:
        """overrides: of Kafka's configs, of which it has none. Raises RuntimeError."""
        program = shutil.which("tansu")
        if program is None:
            hint = "cargo install tansu --features dynostore"
            raise RuntimeError(f"there is no tansu on the PATH ({hint})")
        super().__init__(place)
        self.program = program

    def command(self) -> list[str]:
        return [self.program, "broker"]

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CLUSTER_ID": "perf",
            "LISTENER_URL": f"tcp://127.0.0.1:{self.port}",
            "ADVERTISED_LISTENER_URL": f"tcp://127.0.0.1:{self.port}",
            "STORAGE_ENGINE": "memory://perf/",
        }


PEERS: dict[str, type[Broker]] = {"kfake": KfakeBroker, "tansu": TansuBroker}
ALL: dict[str, type[Broker]] = {**BROKERS, **PEERS}
