"""Containers of the image that config/Containerfile makes, by podman.

KBROKER_IMAGE names an image that is there; otherwise one is built from the wheel in dist (make
wheels) for the Python of Debian 12, on a Debian that debootstrap brings once.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.testing import wait_until

ROOT = Path(__file__).resolve().parents[3]
DIST = ROOT / "dist"
BASE = "localhost/kbroker-base:bookworm"
BASE_PYTHON = "311"
# The user of the image, whom its volumes belong to.
USER = 1000
# BOUND: for a container to start, an image to be built, and a Debian to be brought.
RUN_S, BUILD_S, BASE_S = 120, 600, 1200
# podman 4 cannot use both generations of cgroups at once; a namespace of its own shows it one.
_ONE_CGROUP = """
umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && echo ready && exec cat
"""


class Podman:
    """Runs podman; where this machine is a container itself, with what that takes."""

    def __init__(self, place: Path) -> None:
        """place: an empty folder, for settings and a socket."""
        self._place = place
        self._prefix: list[str] = []
        self._environment = dict(os.environ)
        self._inside: subprocess.Popen[str] | None = None
        self._service: subprocess.Popen[bytes] | None = None
        self._build_options: list[str] = []
        filesystem = subprocess.check_output(["stat", "-fc", "%T", "/sys/fs/cgroup"], text=True)
        if filesystem.strip() != "cgroup2fs":
            self._go_inside()

    def _go_inside(self) -> None:
        self._inside = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", _ONE_CGROUP],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._inside.stdout
        if self._inside.stdout.readline() != "ready\n":
            pytest.skip("podman needs cgroups of one generation, and those of this machine are not")
        self._prefix = ["nsenter", "-t", str(self._inside.pid), "-m", f"--wd={ROOT}"]
        limits = [
            f'"{name}={limit}:{limit}"'
            for name, number in (
                ("nofile", resource.RLIMIT_NOFILE),
                ("nproc", resource.RLIMIT_NPROC),
            )
            if (limit := min(resource.getrlimit(number)[1] & (2**63 - 1), 4096))
        ]
        settings = self._place / "containers.conf"
        text = f'[containers]\ncgroups = "disabled"\ndefault_ulimits = [{", ".join(limits)}]\n'
        settings.write_text(text)
        self._environment["CONTAINERS_CONF"] = str(settings)
        # RUN sets limits that only those with CAP_SYS_RESOURCE may set.
        self._build_options = ["--isolation", "chroot"]

    def close(self) -> None:
        """End what was started."""
        for process in (self._service, self._inside):
            if process is not None:
                process.kill()
                process.wait()
                if process.stdin:
                    process.stdin.close()
                if process.stdout:
                    process.stdout.close()

    def call(self, *words: str, timeout_s: float = RUN_S) -> subprocess.CompletedProcess[str]:
        """``podman`` with these words; both of its outputs are in ``stdout``."""
        return subprocess.run(
            [*self._prefix, "podman", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=timeout_s, env=self._environment,
        )  # fmt: skip

    def must(self, *words: str, timeout_s: float = RUN_S) -> str:
        """What it said. Raises AssertionError if it failed."""
        done = self.call(*words, timeout_s=timeout_s)
        assert done.returncode == 0, f"podman {' '.join(words)}: {done.stdout}"
        return done.stdout

    def inspect(self, name: str, kind: str = "container") -> dict[str, object]:
        """What podman knows of it."""
        said = self.must("inspect", "--type", kind, name)
        found: dict[str, object] = json.loads(said[said.index("[\n") :])[0]
        return found

    def serve(self) -> str:
        """The address of a socket that speaks docker's protocol, for testcontainers."""
        path = self._place / "podman.sock"
        address = f"unix://{path}"
        if self._service is None:
            with (self._place / "service.log").open("wb") as log:
                self._service = subprocess.Popen(
                    [*self._prefix, "podman", "system", "service", "--time=0", address],
                    stdout=log, stderr=log, env=self._environment,
                )  # fmt: skip
            wait_until(path.exists, RUN_S)
        return address

    @contextmanager
    def started(self, image: str, *options: str) -> Iterator[str]:
        """The name of a container; it is removed in the end."""
        name = f"kbroker-test-{uuid.uuid4().hex[:12]}"
        try:
            self.must("run", "--detach", "--name", name, *options, image)
            yield name
        finally:
            self.call("rm", "--force", "--time", "0", "--volumes", name)

    def is_healthy(self, name: str) -> bool:
        """Whether the image's health check says so. Raises AssertionError if it has ended."""
        return self.call("healthcheck", "run", name).returncode == 0

    def stop(self, name: str, allowed_s: int) -> tuple[int, float]:
        """The exit code, 137 if it was killed after ``allowed_s``, and the seconds that it took."""
        begun = time.monotonic()
        self.must("stop", "--time", str(allowed_s), name)
        took_s = time.monotonic() - begun
        state = self.inspect(name)["State"]
        assert isinstance(state, dict)
        return int(state["ExitCode"]), took_s

    def image(self) -> str:
        """The image to test: KBROKER_IMAGE, or a new one."""
        named = os.environ.get("KBROKER_IMAGE")
        if named:
            return named
        wheels = sorted(DIST.glob(f"kbroker-*-cp{BASE_PYTHON}-*x86_64.whl"))
        if not wheels:
            pytest.skip("no wheel in dist: make wheels, or name an image in KBROKER_IMAGE")
        if self.call("image", "exists", BASE).returncode:
            self._bring_base()
        context = self._place / "context"
        (context / "dist").mkdir(parents=True)
        shutil.copytree(ROOT / "config", context / "config")
        shutil.copy(wheels[-1], context / "dist")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
        command += ["--python-version", BASE_PYTHON, "--implementation", "cp"]
        for tag in ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014"):
            command += ["--platform", f"{tag}_x86_64"]
        command += ["-d", str(context / "dist"), str(wheels[-1])]
        subprocess.run(command, check=True, timeout=BUILD_S)
        self.must(
            "build", *self._build_options, "--no-cache", "--format", "docker", "--tag",
            "localhost/kbroker-test", "--build-arg", f"BASE={BASE}", "--build-arg",
            "PIP_NO_INDEX=1", "--file", f"{context}/config/Containerfile", str(context),
            timeout_s=BUILD_S,
        )  # fmt: skip
        return "localhost/kbroker-test"

    def _bring_base(self) -> None:
        if shutil.which("debootstrap") is None:
            pytest.skip("needs debootstrap (apt-get install debootstrap), or KBROKER_IMAGE")
        place, archive = self._place / "base", self._place / "base.tar"
        command = ["unshare", "--mount", "debootstrap", "--variant=minbase"]
        command += ["--include=python3,python3-venv", "bookworm", str(place)]
        mirror = os.environ.get("KBROKER_DEBIAN_MIRROR")
        subprocess.run(
            [*command, *([mirror] if mirror else [])],
            check=True, stdout=subprocess.DEVNULL, timeout=BASE_S,
        )  # fmt: skip
        subprocess.run(["tar", "-C", str(place), "-cf", str(archive), "."], check=True)
        self.must("import", str(archive), BASE, timeout_s=BUILD_S)
        shutil.rmtree(place)
        archive.unlink()


def podman_missing() -> str:
    """Why there are no containers here; empty if there are."""
    if os.geteuid():
        return "containers with volumes of other users need root"
    if shutil.which("podman") is None:
        return "needs podman (apt-get install podman)"
    return ""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
