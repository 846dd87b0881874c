"""The processes of a running broker, found by their titles in /proc."""

from __future__ import annotations

import os
from contextlib import suppress

TITLE_PREFIX = "kbroker: "
_THREAD_COUNT = 17  # index of num_threads behind the name


def children_of(parent_pid: int) -> dict[str, int]:
    """``{"io-0": 4711, ...}``: the named children of a supervisor."""
    children = {}
    for pid in child_pids(parent_pid):
        with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            title = file.read().rstrip(b"\0 ").decode(errors="replace")
            if title.startswith(TITLE_PREFIX) and "-" in title:
                children[title.removeprefix(TITLE_PREFIX)] = pid
    return children


def child_pids(parent_pid: int) -> list[int]:
    """The pids of all its children, including those without a title yet."""
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):  # it ended while we looked
                if _parent_of(entry) == parent_pid:
                    pids.append(int(entry))
    return pids


def exists(pid: int) -> bool:
    """Whether any thread of the process exists.

    A killed process is a zombie as soon as its first thread has ended, but its sockets and files go
    with the last.
    """
    try:
        fields = _stat_fields(str(pid))
    except OSError:
        return False
    return fields[0] not in "ZX" or int(fields[_THREAD_COUNT]) > 1


def _parent_of(pid: str) -> int:
    return int(_stat_fields(pid)[1])


def _stat_fields(pid: str) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold anything: state, parent, ..."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
