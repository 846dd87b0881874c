"""A checkout as a user has it after ``make build``, on a machine of its own: commands are run there
as they are typed, at the ports that documents name.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.testing import wait_until

ROOT = Path(__file__).resolve().parents[3]
_TOOLS = ("unshare", "nsenter", "ip")


def skip_without_namespaces() -> None:
    """Call it before anything that needs a machine of its own."""
    if os.geteuid():
        pytest.skip("only root can give it a network of its own")
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


class Terminal:
    """A command that runs, and what it has printed so far, stderr included."""

    def __init__(self, command: list[str], home: Path, log: Path) -> None:
        self._log = log
        with log.open("wb") as written:
            self.process = subprocess.Popen(
                command, cwd=home, stdin=subprocess.PIPE, stdout=written, stderr=subprocess.STDOUT
            )

    @property
    def text(self) -> str:
        return self._log.read_text()

    def type(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def wait_for(self, *texts: str) -> None:
        """Raises AssertionError with what there is instead."""

        def shown() -> bool:
            return all(text in self.text for text in texts)

        try:
            wait_until(shown, 60, repr(texts))
        except Exception as error:
            raise AssertionError(f"{texts} is not in: {self.text}") from error


class Checkout:
    """``home``: where commands are run. ``close`` ends all that runs."""

    def __init__(self, tmp_path: Path) -> None:
        skip_without_namespaces()
        self.home = tmp_path / "kafka"
        self.home.mkdir(parents=True)
        for name in ("bin", "config"):
            shutil.copytree(ROOT / name, self.home / name, symlinks=True)
        for name in ("kbroker", ".venv"):
            (self.home / name).symlink_to(ROOT / name)
        self._logs = Path(tempfile.mkdtemp(dir=tmp_path))
        self._count = 0
        self._machine = subprocess.Popen(
            [*"unshare --net --pid --mount-proc --fork --kill-child sh -c".split(),
             "ip link set lo up && echo up && exec sleep infinity"],
            stdout=subprocess.PIPE, cwd=self.home,
        )  # fmt: skip
        assert self._machine.stdout is not None
        assert self._machine.stdout.readline() == b"up\n"
        pid = self._machine.pid
        (inside,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._enter = ["env", "-u", "COLUMNS"]  # or ps would shorten its lines
        self._enter += ["nsenter", "-t", inside, "-n", "-p", "-m", f"--wd={self.home}"]

    def close(self) -> None:
        self._machine.kill()
        self._machine.wait(30)
        assert self._machine.stdout is not None
        self._machine.stdout.close()

    def run(self, line: str, stdin: str = "", code: int | None = 0) -> str:
        """What a line of the shell prints on stdout. code: how it ends."""
        found = subprocess.run(
            [*self._enter, "bash", "-c", line], input=stdin, text=True, capture_output=True,
            cwd=self.home, timeout=120, check=False,
        )  # fmt: skip
        assert code in (None, found.returncode), (line, found)
        return found.stdout

    def open(self, line: str) -> Terminal:
        """Run a line in a terminal of its own, one command."""
        self._count += 1
        log = self._logs / f"{self._count}.log"
        return Terminal([*self._enter, "bash", "-c", f"exec {line}"], self.home, log)

    def interrupt(self, terminal: Terminal) -> int:
        """Ctrl-C; the exit code."""
        outside = terminal.process.pid
        (child,) = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()
        os.kill(int(child), signal.SIGINT)
        assert terminal.process.stdin is not None
        terminal.process.stdin.close()
        return terminal.process.wait(60)

    def until(self, line: str, expected: Callable[[str], bool]) -> str:
        """Run a line again until it prints what is expected; what it has printed then."""
        found = [""]

        def done() -> bool:
            found[0] = self.run(line, code=None)
            return expected(found[0])

        try:
            wait_until(done, 90, line)
        except Exception as error:
            raise AssertionError(f"{line}: {found[0]}") from error
        return found[0]
