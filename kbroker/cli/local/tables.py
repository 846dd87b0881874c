"""What the board of a broker looks like in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.cli.arguments import table_text
from kbroker.wording import shown

# Section -> its columns: key in a row -> heading.
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "findings": {"severity": "SEVERITY", "subject": "SUBJECT", "what": "WHAT IS WRONG"},
    "log_dirs": {
        "path": "LOG DIRECTORY",
        "state": "STATE",
        "free_bytes": "FREE",
        "total_bytes": "OF",
        "free_percent": "%FREE",
    },
    "processes": {
        "process": "PROCESS",
        "pid": "PID",
        "state": "STATE",
        "restarts": "RESTARTS",
        "heartbeat_ms": "HEARTBEAT",
        "cpu_percent": "%CPU",
        "idle_percent": "%IDLE",
        "memory_bytes": "MEMORY",
        "descriptors": "FDS",
        "connections": "CONNECTIONS",
    },
    "topics": {
        "topic": "TOPIC",
        "partitions": "REPLICAS",
        "leads": "LEADS",
        "messages_in_per_s": "RECORDS/S",
        "bytes_in_per_s": "IN/S",
        "bytes_out_per_s": "OUT/S",
        "bytes": "SIZE",
    },
    "clients": {
        "client_id": "CLIENT",
        "software": "SOFTWARE",
        "listener": "LISTENER",
        "connections": "CONNECTIONS",
        "requests_per_s": "REQUESTS/S",
        "bytes_in_per_s": "IN/S",
        "bytes_out_per_s": "OUT/S",
    },
    "requests": {"api": "REQUEST", "per_s": "PER S", "total": "TOTAL"},
    "groups": {
        "group": "GROUP",
        "state": "STATE",
        "members": "MEMBERS",
        "topics": "TOPICS",
        "lag": "LAG",
        "lag_max": "LARGEST",
        "lag_seconds": "SECONDS",
    },
}
_UNITS = ("B", "K", "M", "G", "T", "P")
# Cells that are numbers of bytes, also per second.
_OF_BYTES = frozenset(
    {
        "memory_bytes",
        "bytes",
        "bytes_in_per_s",
        "bytes_out_per_s",
        "free_bytes",
        "total_bytes",
    }
)
HEADING_MAX = 2_000
NO_GROUPS = "GROUP: the exporter does not answer"


def size_text(count: float) -> str:
    """``512B``, ``1.5M``, ``147M``: of bytes, by 1024."""
    for unit in _UNITS:
        if count < 999.5 or unit == _UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f}{unit}" if count >= 99.95 or unit == "B" else f"{count:.1f}{unit}"


def cells(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: size_text(value) if key in _OF_BYTES and value is not None else value
        for key, value in row.items()
    }


def heading(board: Mapping[str, Any]) -> str:
    """One line about the broker as a whole."""
    broker = board["broker"]
    of_user = f" of user {broker['user']}" if broker["user"] else ""
    return shown(
        f"broker {broker['broker_id']}, {broker['bootstrap']}, pid {broker['pid']}{of_user}, "
        f"kbroker {broker['version']}, cluster {broker['cluster_id'] or '-'}",
        HEADING_MAX,
    )


def section_text(name: str, rows: Sequence[Mapping[str, Any]] | None, most: int | None) -> str:
    """A table with at most so many rows. rows: None if nobody could be asked."""
    if rows is None:
        return NO_GROUPS
    text = table_text(COLUMNS[name], [cells(row) for row in rows[:most]])
    left = 0 if most is None else len(rows) - most
    return text + (f"\n... {left} more" if left > 0 else "")


def board_text(board: Mapping[str, Any], lines: int | None = None) -> str:
    """All sections. lines: of the terminal; None: everything."""
    names = [name for name in COLUMNS if name in board and (board[name] or name != "findings")]
    most: dict[str, int | None] = dict.fromkeys(names)
    if lines is not None:
        # Processes are shown in full; the others share what is left, with a heading, a line for
        # the rest and an empty one each.
        whole = ("findings", "log_dirs", "processes")
        others = [name for name in names if name not in whole]
        shown_whole = sum(len(board[name]) + 2 for name in names if name in whole)
        left = lines - 3 - shown_whole - 3 * len(others)
        share = max(2, left // max(1, len(others)))
        for name in others:
            most[name] = share
    parts = [section_text(name, board[name], most[name]) for name in names]
    return "\n\n".join([heading(board), *parts])
