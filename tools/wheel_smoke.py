#!/usr/bin/env python3
"""What a new user does with a wheel, in one run: needs nothing but Python, and kcat.

    python3 wheel_smoke.py DIR_WITH_WHEELS NEW_ENVIRONMENT

Installs kbroker by pip, without a compiler's help, into a new environment; starts a broker, writes
records with kcat and reads them back; starts one from kbroker.testing; copies the samples. The last
line is JSON: seconds and sizes. Exits with 1 and a sentence at the first thing that fails.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path

RUNS = 5
START_S = STOP_S = 120
LINES = [f"record {number}" for number in range(100)]
# What a compiler that knows nothing of the processor would leave at a tenth of its speed.
CHECKSUM = "from kbroker._ext.base import crc32c; print(crc32c.IMPLEMENTATION)"
TESTING = """
import sys
from kbroker.testing import Broker
with Broker() as broker:
    sys.exit(0 if broker.bootstrap else 1)
"""


def fail(text: str) -> None:
    print(text, flush=True)
    sys.exit(1)


def run(*command: str | Path, **options: object) -> str:
    """The output of a command that must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, **options)
    if done.returncode:
        fail(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def megabytes(folder: Path) -> float:
    """What the files below a folder occupy."""
    sizes = [path.lstat().st_blocks * 512 for path in folder.rglob("*") if not path.is_symlink()]
    return round(sum(sizes) / 1e6, 1)


def cpu_since(before: os.times_result) -> float:
    """CPU time of the processes that have ended since."""
    now = os.times()
    return sum(now[2:4]) - sum(before[2:4])


def seconds(*command: str | Path) -> list[float]:
    """The least time of a few runs of a command, from exec to exit, and its least CPU time."""
    times, cpu_times = [], []
    for _ in range(RUNS):
        begun, used = time.monotonic(), os.times()
        run(*command)
        times.append(time.monotonic() - begun)
        cpu_times.append(cpu_since(used))
    return [round(min(times), 3), round(min(cpu_times), 3)]


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def serve(command: Path, data: Path) -> dict[str, float]:
    """A broker whose records come back through kcat."""
    address = f"127.0.0.1:{free_port()}"
    words = ["start", "--data", data, "--override", f"listeners=PLAINTEXT://{address}"]
    log = data.with_suffix(".log")
    begun = time.monotonic()
    with log.open("w") as output:
        broker = subprocess.Popen(
            [str(word) for word in (command, *words, "--override", "metrics.port=0")],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        while "processes are ready" not in log.read_text():
            if broker.poll() is not None or time.monotonic() > begun + START_S:
                fail(f"the broker does not serve:\n{log.read_text()}")
            time.sleep(0.01)
        ready_s = time.monotonic() - begun
        kcat = ("kcat", "-b", address, "-t", "smoke")
        run(*kcat, "-P", input="\n".join(LINES))
        read = run(*kcat, "-C", "-e", "-q").splitlines()
        if read != LINES:
            fail(f"kcat read {len(read)} records, not the {len(LINES)} that it wrote")
        begun = time.monotonic()
        broker.send_signal(signal.SIGTERM)
        code = broker.wait(STOP_S)
        if code:
            fail(f"the broker ended with {code}:\n{log.read_text()}")
        return {"start_s": round(ready_s, 2), "stop_s": round(time.monotonic() - begun, 2)}
    finally:
        broker.kill()


def main() -> None:
    wheels, home = Path(sys.argv[1]), Path(sys.argv[2])
    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    venv.create(home, with_pip=True, symlinks=True)
    binaries = home / "bin"
    before = megabytes(home)
    begun, used = time.monotonic(), os.times()
    pip = (binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--only-binary", ":all:", "--find-links", wheels, "kbroker")
    found: dict[str, object] = {"install_s": round(time.monotonic() - begun, 1)}
    found["install_cpu_s"] = round(cpu_since(used), 1)
    found["installed_mb"] = round(megabytes(home) - before, 1)
    (package,) = home.glob("lib/python3*/site-packages/kbroker")
    found["of_it_kbroker_mb"] = megabytes(package)
    found["packages"] = len(list(package.parent.glob("*.dist-info"))) - 1  # without pip
    found |= serve(binaries / "kbroker", home / "data")
    run(binaries / "python", "-c", TESTING)
    found["checksum"] = run(binaries / "python", "-c", CHECKSUM).strip()
    if "sse4_2" in Path("/proc/cpuinfo").read_text() and found["checksum"] != "sse4.2":
        fail(f"checksums do not use the processor's instruction: {found['checksum']}")
    samples = home / "samples"
    run(binaries / "kbroker", "sample", "--to", samples)
    if not (samples / "server.properties").stat().st_size:
        fail("the sample of server.properties is empty")
    found["import_client_s"] = seconds(binaries / "python", "-c", "import kbroker.client")
    found["python_s"] = seconds(binaries / "python", "-c", "pass")
    found["help_s"] = seconds(binaries / "kbroker", "--help")
    found["python"] = ".".join(map(str, sys.version_info[:3]))
    found["compilers"] = compilers
    print(json.dumps(found))


if __name__ == "__main__":
    # Debian's Python in a chroot has the locale of nobody.
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    main()
