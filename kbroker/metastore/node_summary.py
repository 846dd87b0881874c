"""Which nodes a metadata store has, for a report: paths, sizes and versions, and hardly any data.

Users, tokens and configs of brokers have credentials in their data, so only data of nodes that
never have any is shown.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from kbroker.metastore.store_files import FILE_NAME, WAL_NAME, places_of_store

# BOUND: nodes that are read of ZooKeeper, and shown of one parent.
NODES_MAX = 20_000
CHILDREN_MAX = 100
DATA_CHARS_MAX = 400
SHOWN = ("/cluster/id", "/controller", "/controller_epoch", "/brokers/ids/", "/brokers/seqid")


class NodeRow(NamedTuple):
    """data: empty unless the node is one of ``SHOWN``."""

    path: str
    version: int
    size: int
    is_ephemeral: bool
    data: bytes = b""


def nodes_of_files(directories: Sequence[str]) -> list[NodeRow]:
    """The nodes of the embedded store, from copies of its files. Raises OSError, ValueError."""
    having = places_of_store(directories)
    if len(having) != 1:
        raise ValueError(f"{len(having)} of the log directories have a metadata store")
    with tempfile.TemporaryDirectory(prefix="kbroker-look-") as place:
        for name in (FILE_NAME, WAL_NAME):
            with suppress(FileNotFoundError):
                shutil.copyfile(os.path.join(having[0], name), os.path.join(place, name))
        try:
            with closing(sqlite3.connect(os.path.join(place, FILE_NAME))) as db:
                query = "SELECT path, version, length(data), ephemeral FROM nodes ORDER BY path"
                rows = db.execute(query).fetchall()
                data = dict(db.execute("SELECT path, data FROM nodes").fetchall())
        except sqlite3.Error as error:
            raise ValueError(f"{having[0]}: {error}") from error
    return [
        NodeRow(path, version, size, bool(ephemeral), data[path] if is_shown(path) else b"")
        for path, version, size, ephemeral in rows
    ]


def nodes_of_zookeeper(connect: str, timeout_s: float) -> list[NodeRow]:
    """The nodes that everybody may read, NODES_MAX at the most. Raises OSError."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts=connect, timeout=timeout_s, read_only=True)
    until = time.monotonic() + timeout_s
    rows: list[NodeRow] = []
    try:
        client.start(timeout=timeout_s)
        waiting = ["/"]
        while waiting and len(rows) < NODES_MAX and time.monotonic() < until:
            path = waiting.pop()
            try:
                children = client.get_children_async(path).get(timeout=timeout_s)
                data, stat = client.get_async(path).get(timeout=timeout_s)
            except KazooException:
                continue  # it is gone, or may not be read
            is_ephemeral = stat.ephemeralOwner != 0
            shown = data if is_shown(path) else b""
            rows.append(NodeRow(path, stat.version, stat.dataLength, is_ephemeral, shown))
            waiting += [f"{path.rstrip('/')}/{name}" for name in children]
    except (KazooTimeoutError, KazooException) as error:
        raise OSError(f"ZooKeeper at {connect} does not respond: {error}") from error
    finally:
        client.stop()
        client.close()
    return sorted(rows)


def is_shown(path: str) -> bool:
    """Whether the data of a node are part of a report."""
    return any(path == one or (one.endswith("/") and path.startswith(one)) for one in SHOWN)


def summary_text(rows: Iterable[NodeRow]) -> str:
    """A line for each node: version, bytes, E if it is ephemeral, path, data. Of a parent with many
    children, some.
    """
    lines, of_parent = [], Counter[str]()
    for row in rows:
        parent = row.path.rpartition("/")[0]
        of_parent[parent] += 1
        if of_parent[parent] > CHILDREN_MAX:
            continue
        shown = row.data.decode("utf-8", "replace")[:DATA_CHARS_MAX]
        kind = "E" if row.is_ephemeral else "-"
        lines.append(f"{row.version:>6} {row.size:>8} {kind} {row.path} {shown}".rstrip())
    more = [
        f"... {count - CHILDREN_MAX} more below {parent or '/'}"
        for parent, count in of_parent.items()
        if count > CHILDREN_MAX
    ]
    return "\n".join([f"{sum(of_parent.values())} nodes", *lines, *more, ""])
