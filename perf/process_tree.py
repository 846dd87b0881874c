"""CPU time, memory and cores of a process with all its descendants, from /proc (Linux)."""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state (field 0) on; None if the process is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may contain spaces and parentheses; the last one ends it.
    return text[text.rindex(")") + 2 :].split()


def descendants(root: int) -> list[int]:
    """``root`` and every living process below it."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def cpu_seconds_of(pid: int) -> float:
    """User and system time of one process, without its children; 0 if it is gone."""
    fields = _stat_fields(pid)
    return sum(int(field) for field in fields[11:13]) / TICKS_PER_SECOND if fields else 0.0


def cpu_seconds(root: int) -> float:
    """User and system time of the tree in seconds, resolution 10 ms.

    Children that died count too, once their parent has reaped them: its own counters then hold
    their time.
    """
    ticks = 0
    for pid in descendants(root):
        fields = _stat_fields(pid)
        if fields is not None:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS_PER_SECOND


def pss_bytes(root: int) -> int:
    """Proportional set size of the tree: memory shared within it counts once."""
    total = 0
    for pid in descendants(root):
        try:
            rollup = (PROC / str(pid) / "smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(
            int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")
        )
    return total * 1024


def named(root: int, name: str) -> int:
    """The process of the tree whose command line has that name in it. Raises RuntimeError."""
    for pid in descendants(root):
        with suppress(FileNotFoundError, ProcessLookupError):
            if name in (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace"):
                return pid
    raise RuntimeError(f"no process below {root} is called {name}")


def kill_all(pids: Collection[int]) -> None:
    """SIGKILL to all of them that are there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Meter:
    """CPU time, and the time that passed, between the first mark and the last one: those of a
    ``with``, or whatever calls ``mark``.
    """

    def __init__(self, cpu_seconds: Callable[[], float]) -> None:
        self._cpu_seconds = cpu_seconds
        self._marks: list[tuple[float, float]] = []

    def mark(self) -> None:
        self._marks.append((time.monotonic(), self._cpu_seconds()))

    def __enter__(self) -> Self:
        self.mark()
        return self

    def __exit__(self, *_: object) -> None:
        self.mark()

    @property
    def seconds(self) -> float:
        return self._marks[-1][0] - self._marks[0][0]

    @property
    def cpu_s(self) -> float:
        return self._marks[-1][1] - self._marks[0][1]

    @property
    def percent(self) -> float:
        """Of a core."""
        return 100 * self.cpu_s / self.seconds


@contextmanager
def kept_to(cores: Collection[int], pids: Collection[int]) -> Iterator[None]:
    """Pin the processes, and those that they start meanwhile, to these cores."""
    before = os.sched_getaffinity(0)
    _set_affinity(pids, cores)
    try:
        yield
    finally:
        _set_affinity({one for pid in pids for one in descendants(pid)}, before)


def _set_affinity(pids: Collection[int], cores: Collection[int]) -> None:
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in (PROC / str(pid) / "task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), cores)
