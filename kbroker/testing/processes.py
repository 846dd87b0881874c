"""The processes of a running broker, found by their titles in /proc."""

from __future__ import annotations

import os
from contextlib import suppress

TITLE_PREFIX = "kbroker: "


def children_of(parent_pid: int) -> dict[str, int]:
    """``{"io-0": 4711, ...}``: the named children of a supervisor."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with suppress(OSError):  # it ended while we looked
            if _parent_of(entry) != parent_pid:
                continue
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                title = file.read().rstrip(b"\0 ").decode(errors="replace")
            if title.startswith(TITLE_PREFIX) and "-" in title:
                found[title.removeprefix(TITLE_PREFIX)] = int(entry)
    return found


def exists(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    try:
        return _stat_fields(str(pid))[0] != "Z"
    except OSError:
        return False


def _parent_of(pid: str) -> int:
    return int(_stat_fields(pid)[1])


def _stat_fields(pid: str) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold anything: state, parent, ..."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
