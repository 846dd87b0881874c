"""The program of a role, as a process: it does its work until its stdin is closed, and writes to
stdout what it was told.

    program.py PLAN        a Plan as JSON
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from fault.clients.roles import ROLES, Role
from fault.clients.told import Told

SETTLE_S = 5.0
USAGE_S = 1.0


class Program:
    """plan: what the runner has chosen, as ``runner.plan_of`` makes it. told: where to write."""

    def __init__(self, plan: dict[str, Any], told: Told) -> None:
        self.told = told
        self.role: Role = ROLES[plan["role"]]
        self.name: str = plan["name"]
        self.bootstrap: str = plan["bootstrap"]
        self.topic: str = plan["topic"]
        self.partitions: int = plan["partitions"]
        self.group: str = plan["group"]
        self.mishap: str = plan["mishap"]
        self.zookeeper: str = plan["zookeeper"]
        self.side: str = plan["side"]  # brokers that are not harmed
        self.directory = Path(plan["directory"])
        self.chance = random.Random(plan["seed"])
        self.settings: dict[str, Any] = {**self.role.settings, **plan["settings"]}
        self.settings["bootstrap_servers"] = self.bootstrap
        self._stop = threading.Event()
        self.struck = threading.Event()  # the mishap is due
        self.resting = False  # it has nothing to do but to wait
        self.slow = False  # it lets records come together
        self.works_in = os.getpid()  # the process that the client is in

    def listen(self) -> None:
        """Obeys the runner: ``strike``, ``rest``, ``slow``, ``work`` and the end of stdin."""
        for line in sys.stdin:
            word = line.strip()
            if word == "strike":
                self.struck.set()
            else:
                self.resting, self.slow = word == "rest", word == "slow"
        self._stop.set()

    def tell_usage(self) -> None:
        """Of processor and memory, until the end."""
        while self.pause(USAGE_S):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(self.works_in)
                times, memory = process.cpu_times(), process.memory_info()
                cpu = times.user + times.system
                self.told.tell("usage", cpu=cpu, rss_mib=memory.rss / (1 << 20), of=process.pid)

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def pause(self, seconds: float) -> bool:
        """Wait; returns whether to go on."""
        return not self._stop.wait(seconds)

    def mishap_due(self, name: str) -> bool:
        """Whether this mishap is the one of the cell and due; only once."""
        due = self.mishap == name and self.struck.is_set()
        if due:
            self.struck.clear()
        return due


def sockets() -> int:
    """How many this process has open."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except OSError:
            pass
    return found


def leftovers(sockets_before: int, threads_before: set[int]) -> dict[str, Any]:
    """What is there after everything was closed, once it had a moment to end."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        gc.collect()
        threads = [t.name for t in threading.enumerate() if t.ident not in threads_before]
        extra = sockets() - sockets_before
        if not (threads or extra > 0) or time.monotonic() > deadline:
            return {"threads": threads, "sockets": extra}
        time.sleep(0.05)


class Wrong(logging.Handler):
    """What Python says of resources that are not closed, and of what is raised where nobody sees
    it: in threads, destructors and tasks.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.warned: list[str] = []
        self.raised: list[str] = []
        warnings.simplefilter("always", ResourceWarning)
        warnings.filterwarnings("always", ".*was never awaited", RuntimeWarning)
        warnings.showwarning = self._warn  # type: ignore[assignment]
        threading.excepthook = self._thread
        sys.unraisablehook = self._unraisable
        logging.getLogger("asyncio").addHandler(self)

    def _warn(self, message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, ResourceWarning | RuntimeWarning):
            self.warned.append(str(message))

    def _thread(self, of: threading.ExceptHookArgs) -> None:
        name = of.thread.name if of.thread is not None else "a thread"
        self.raised.append(f"{name}: {of.exc_type.__name__}: {of.exc_value}"[:500])

    def _unraisable(self, of: Any) -> None:
        self.raised.append(f"{of.object!r}: {of.exc_type.__name__}: {of.exc_value}"[:500])

    def emit(self, record: logging.LogRecord) -> None:
        self.raised.append(record.getMessage()[:500])


def main() -> None:
    """The process."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anybody prints is not ours
    told = Told(out)
    program = Program(json.loads(sys.argv[1]), told)
    wrong = Wrong()
    threading.Thread(target=program.listen, name="exam", daemon=True).start()
    threading.Thread(target=program.tell_usage, name="exam-usage", daemon=True).start()
    before = sockets(), {t.ident or 0 for t in threading.enumerate()}
    try:
        run(program)
    except BaseException as error:  # whatever it is, the runner must know
        traceback.print_exc()
        told.tell("broke", error=f"{type(error).__name__}: {error}"[:1000])
    told.end(**leftovers(*before), warnings=wrong.warned, raised=wrong.raised)


def run(program: Program) -> None:
    """Imports only what the role needs."""
    module, _, name = program.role.program.rpartition(".")
    getattr(importlib.import_module(f"fault.clients.{module}"), name)(program)


if __name__ == "__main__":
    main()
