#!/usr/bin/env python3
"""README's commands on an empty machine: a fresh Debian in a chroot, built by root.

    tools/bare.py                          Debian 12 and 13, root and a user, all steps: hours
    tools/bare.py --releases trixie --users user --steps run most
    tools/bare.py --releases trixie --steps machine   only builds the chroot, for a run with --built

Nothing of this machine gets in but how it reaches the network (names of hosts, certificates, pip's
and Maven's settings), and that tests are to be reproducible. The steps are `make run` until the
broker is healthy, and `make test`, first with the packages of README's quick start (`run`, `most`
for what needs few others, `test`), then also with those of its section on development (`full`).
What the tests leave out must be what README says. Logs stay in .cache/bare.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socket

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".cache" / "bare"
RELEASES = {"bookworm": "Debian 12", "trixie": "Debian 13"}
STEPS = ("run", "most", "test", "full")
MACHINE = "machine"
# What most of can run with the packages of README's quick start, but for clusters: what is between
# brokers is the same on every machine.
MOST = (
    "tests/spark tests/unit tests/wire tests/property tests/integration"
    " --ignore-glob=tests/integration/test_cluster_*"
    " --ignore-glob=tests/integration/test_zookeeper_*"
)
# The user's name and where it lives.
HOMES = {"root": "/root", "user": "/home/user"}
READY_S = 1800
STOP_S = 30

PASSED = re.compile(r"PIP_(CERT|INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT)"
                    r"|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|(?i:https?|no)_proxy"
                    r"|CI|KBROKER_CI|KBROKER_FAULT_SEED")  # fmt: skip
FILES = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "/usr/local/share/ca-certificates",
)
# Run as root in its own mount and process namespace: what it mounts and starts ends with it.
ENTER = """
place=$1; user=$2; directory=$3; shift 3
mount -t proc proc "$place/proc" &&
mount --rbind /sys "$place/sys" && mount --rbind /dev "$place/dev" &&
mount -t tmpfs -o mode=1777 tmpfs "$place/dev/shm" &&
exec chroot "$place" setpriv --reuid "$user" --regid "$user" --init-groups \
    sh -c 'cd "$1" && shift && exec "$@"' sh "$directory" "$@"
"""


class Failed(Exception):
    """A step did not do what README says."""


def readme_packages() -> tuple[list[str], list[str]]:
    """The packages in README's quick start and development section."""
    lines = re.findall(r"apt-get install ([a-z0-9 .+-]+)", (ROOT / "README.md").read_text())
    quick_start, development = (line.split() for line in lines)
    return quick_start, development


class Machine:
    """A chroot of one release."""

    def __init__(self, release: str) -> None:
        self.release = release
        self.place = PLACE / release
        self._passed = {name: text for name, text in os.environ.items() if PASSED.fullmatch(name)}

    def build(self, with_tree: bool = True) -> None:
        """A minimal Debian with a user and network access, and a clone for each user unless
        ``with_tree`` is false. Raises Failed.
        """
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        # It mounts /proc there, and leaves it mounted when it is interrupted.
        command = ["unshare", "--mount", "debootstrap", "--variant=minbase"]
        command += [self.release, str(self.place)]
        mirror = os.environ.get("KBROKER_DEBIAN_MIRROR")
        log = PLACE / f"{self.release}-debootstrap.log"
        with log.open("w") as output:
            done = subprocess.run([*command, *([mirror] if mirror else [])], stdout=output)
        if done.returncode:
            raise Failed(f"debootstrap: {log}\n{tail(log)}")
        for name in FILES:
            self._take(Path(name), self.place / name[1:])
        settings = Path.home() / ".m2" / "settings.xml"
        self.call("root", ["useradd", "--create-home", "--shell", "/bin/bash", "user"])
        tree = tracked_files() if with_tree else []
        for user, home in HOMES.items():
            self._take(settings, self.place / home[1:] / ".m2" / "settings.xml")
            clone = self.place / home[1:] / "kbroker"
            for name in tree:
                (clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, clone / name)
            self.call("root", ["chown", "-R", f"{user}:{user}", home])
        self.call("root", ["apt-get", "update", "-q"])

    @staticmethod
    def _take(source: Path, target: Path) -> None:
        if not source.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)

    def install(self, packages: list[str]) -> None:
        self.call("root", ["apt-get", "install", "-y", "-q", *packages])

    def call(self, user: str, command: list[str], log: Path | None = None) -> str:
        """Run a command to its end; returns its output. Raises Failed."""
        log = log or PLACE / f"{self.release}-setup.log"
        with self.running(user, command, log) as process:
            code = process.wait()
        if code:
            raise Failed(f"{' '.join(command)} ended with {code}: {log}\n{tail(log)}")
        return log.read_text(errors="replace")

    @contextmanager
    def running(
        self, user: str, command: list[str], log: Path
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A command in the user's clone, which is removed afterwards with all its processes."""
        home = HOMES[user]
        directory = f"{home}/kbroker" if command[0] == "make" else "/"
        environment = self._passed | {
            "HOME": home,
            "USER": user,
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*enter, str(self.place), user, directory, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def tracked_files() -> list[str]:
    """The files in a clone of the work tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    with socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def make_run(machine: Machine, user: str) -> None:
    """`make run` on free ports until the broker reports that it is healthy, and Ctrl-C."""
    metrics = free_port()
    settings = f"--override listeners=PLAINTEXT://127.0.0.1:{free_port()}"
    settings += f" --override metrics.port={metrics}"
    log = PLACE / f"{machine.release}-{user}-run.log"
    with machine.running(user, ["make", "run", f"ARGS={settings}"], log) as process:
        deadline = time.monotonic() + READY_S
        while not is_healthy(metrics):
            if process.poll() is not None:
                raise Failed(f"make run ended with {process.returncode}: {log}\n{tail(log)}")
            if time.monotonic() > deadline:
                raise Failed(f"make run serves nothing after {READY_S} s: {log}\n{tail(log)}")
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"Ctrl-C does not end make run: {log}\n{tail(log)}") from None
    if "Traceback" in log.read_text():
        raise Failed(f"make run: {log}\n{tail(log)}")


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(json.load(response))
    except (OSError, ValueError):  # urllib's errors are OSError
        return False


def make_test(machine: Machine, user: str, step: str, packages: list[str]) -> str:
    """`make test`; its last lines. Only tests that need root or ``packages`` may be left out."""
    log = PLACE / f"{machine.release}-{user}-{step}.log"
    words = f"ARGS=-ra {MOST}" if step == "most" else "ARGS=-ra"
    said = machine.call(user, ["make", "test", words], log).splitlines()
    line = next((line for line in said if line.startswith("left out: ")), "")
    wanted = re.search(r"apt-get install ([^;]*)", line)
    names = set(re.findall(r"[a-z][a-z0-9.+-]*", wanted[1])) if wanted else set()
    if names - set(packages):
        raise Failed(f"README names no {', '.join(sorted(names - set(packages)))}: {log}\n{line}")
    result = next(text for text in reversed(said) if re.search(r"\d+ passed", text))
    return f"{result}; {line}" if line else result


def check(release: str, users: list[str], steps: list[str], is_built: bool) -> None:
    quick_start, development = readme_packages()
    machine = Machine(release)
    if not is_built:
        announce(f"{RELEASES[release]}: building {machine.place}")
        machine.build()
        machine.install(quick_start)
    if steps == [MACHINE]:
        return
    for step in (step for step in STEPS if step in steps):
        if step == "full":
            machine.install(development)
        for user in users:
            announce(f"{RELEASES[release]}, {user}: {step}")
            if step == "run":
                make_run(machine, user)
            else:
                missing = [] if step == "full" else development
                announce(make_test(machine, user, step, missing))
    shutil.rmtree(machine.place)


def announce(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--releases", nargs="+", choices=RELEASES, default=[*RELEASES])
    parser.add_argument("--users", nargs="+", choices=HOMES, default=[*HOMES])
    known = [*STEPS, MACHINE]
    parser.add_argument("--steps", nargs="+", choices=known, default=["run", "test", "full"])
    parser.add_argument("--built", action="store_true", help="go on with chroots that are there")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("only root may build a chroot")
    if shutil.which("debootstrap") is None:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "debootstrap"], check=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    for release in options.releases:
        try:
            check(release, options.users, options.steps, options.built)
        except Failed as failed:
            announce(f"{RELEASES[release]} failed: {failed}")
            return 1
        if options.steps != [MACHINE]:
            announce(f"{RELEASES[release]}: as README says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
