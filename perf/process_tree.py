"""CPU time, memory and cores of a process with all its descendants, from /proc (Linux)."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
