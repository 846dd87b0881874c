"""Programs of roles as the runner sees them: processes, and the lines that they write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil
from fault.clients.outputs import output_of

TESTS = Path(__file__).resolve().parents[2]
EXIT_S = 90.0
DUMP_S = 1.0


class Running:
    """One program. lines: what it has told so far, each with its name."""

    def __init__(self, plan: dict[str, Any], directory: Path) -> None:
        self.name: str = plan["name"]
        self.lines: list[dict[str, Any]] = [{"at": 0.0, "what": "name", "who": self.name}]
        self.errors_path = directory / f"{self.name}.errors"
        self._log = Path(plan["directory"]) / "log"  # of a command that it runs
        self._errors = self.errors_path.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fault.clients.program", json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=TESTS,
            env=_environment(),
        )
        assert self._process.stdout is not None
        self._thread = threading.Thread(
            target=self._read, args=(self._process.stdout,), daemon=True
        )
        self._thread.start()
        self.ended_s = 0.0

    def _read(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            self.lines.append({**json.loads(line), "who": self.name})

    def say(self, word: str) -> None:
        """``strike``: its mishap is due; ``rest``: it only waits, or ``slow``: lets records come
        together, until ``work``.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is seen then
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def begin_end(self) -> None:
        """It is to close its client and end."""
        assert self._process.stdin is not None
        if self.running:
            self._process.stdin.close()

    def end(self) -> str:
        """Wait for its end; what was wrong with that."""
        began = time.monotonic()
        try:
            code = self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            return f"it does not end\n{self.kill()}"
        finally:
            self.ended_s = time.monotonic() - began
            self._errors.close()
        self._thread.join(10)
        if code:
            return f"it ended with {code}:\n{self.errors()[-2000:]}"
        late = [line for line in self.errors().splitlines() if "ResourceWarning" in line]
        return f"at its end: {late[0]}" if late else ""

    def kill(self) -> str:
        """Where its threads were."""
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(DUMP_S)
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.kill()  # a command, or a JVM, which would go on alone
        self._process.kill()
        self._process.wait()
        return self.errors()[-6000:]

    def errors(self) -> str:
        return self.errors_path.read_text(errors="replace")

    def output(self) -> str:
        """All that it has printed, as far as a person reads it."""
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        return output_of(self.name, list(self.lines), (self.errors(), log))


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "PYTHONFAULTHANDLER": "1"}
