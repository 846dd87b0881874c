"""The program of a role, as a process: it does its work until its stdin is closed, and writes to
stdout what it was told.

    program.py PLAN        a Plan as JSON
"""

from __future__ import annotations

import faulthandler
import gc
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
from typing import Any

from fault.clients.roles import ADMINISTERS, ROLES, WRITES, Role
from fault.clients.told import Told

STOPPED_LONGER_S = 0.02
SETTLE_S = 5.0


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
        self.chance = random.Random(plan["seed"])
        self.settings: dict[str, Any] = {**self.role.settings, **plan["settings"]}
        self.settings["bootstrap_servers"] = self.bootstrap
        self._stop = threading.Event()
        self.struck = threading.Event()  # the mishap is due

    def listen(self) -> None:
        """Obeys the runner: ``strike`` and the end of stdin."""
        for line in sys.stdin:
            if line.strip() == "strike":
                self.struck.set()
        self._stop.set()

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


def main() -> None:
    """The process."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anybody prints is not ours
    told = Told(out)
    program = Program(json.loads(sys.argv[1]), told)
    warned: list[str] = []

    def warn(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, ResourceWarning):
            warned.append(str(message))

    warnings.simplefilter("always", ResourceWarning)
    warnings.showwarning = warn  # type: ignore[assignment]
    threading.Thread(target=program.listen, name="exam", daemon=True).start()
    before = sockets(), {t.ident or 0 for t in threading.enumerate()}
    try:
        run(program)
    except BaseException as error:  # whatever it is, the runner must know
        traceback.print_exc()
        told.tell("broke", error=f"{type(error).__name__}: {error}"[:1000])
    told.end(**leftovers(*before), warnings=warned)


def run(program: Program) -> None:
    """Imports only what the role needs."""
    if program.role.does == WRITES:
        from fault.clients.writers import write

        write(program)
    elif program.role.does == ADMINISTERS:
        from fault.clients.administrators import administer

        administer(program)
    else:
        from fault.clients.readers import read

        read(program)


if __name__ == "__main__":
    main()
