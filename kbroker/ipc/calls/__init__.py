"""All operations between the processes of a broker: request, result, and who serves them.

``Rpc.call`` takes a row of this table and its request, ``Rpc.serve`` a row and the function that
serves it in the processes named in the row. The rows and their classes are in one module for each
area, and imported from here. To add an operation, add its row to its area, and classes for its
request and result if there are none like them. ``kbroker.ipc.documents`` says what a class may
contain; classes with many instances in one document, and requests that every transaction sends, are
NamedTuples, which cost less to make. Frozen classes would cost a start 8 ms more.
"""

from __future__ import annotations

from typing import Any

from kbroker.ipc.calls.acls import *  # noqa: F403
from kbroker.ipc.calls.base import *  # noqa: F403
from kbroker.ipc.calls.compaction import *  # noqa: F403
from kbroker.ipc.calls.configs import *  # noqa: F403
from kbroker.ipc.calls.connections import *  # noqa: F403
from kbroker.ipc.calls.control import *  # noqa: F403
from kbroker.ipc.calls.credentials import *  # noqa: F403
from kbroker.ipc.calls.features import *  # noqa: F403
from kbroker.ipc.calls.groups import *  # noqa: F403
from kbroker.ipc.calls.image import *  # noqa: F403
from kbroker.ipc.calls.in_sync import *  # noqa: F403
from kbroker.ipc.calls.log_dirs import *  # noqa: F403
from kbroker.ipc.calls.partitions import *  # noqa: F403
from kbroker.ipc.calls.quotas import *  # noqa: F403
from kbroker.ipc.calls.reassignments import *  # noqa: F403
from kbroker.ipc.calls.stored import *  # noqa: F403
from kbroker.ipc.calls.telemetry import *  # noqa: F403
from kbroker.ipc.calls.tokens import *  # noqa: F403
from kbroker.ipc.calls.topics import *  # noqa: F403
from kbroker.ipc.calls.transactions import *  # noqa: F403
from kbroker.ipc.operation import CallOperation as CallOperation

OPERATIONS: dict[str, CallOperation[Any, Any]] = {
    row.name: row for row in list(globals().values()) if isinstance(row, CallOperation)
}


def make_readers() -> None:
    """Make what reads the requests and replies of all operations.

    Before the fork: it evaluates the annotations of some seventy classes, and each process would
    do that again, in memory of its own.
    """
    for row in OPERATIONS.values():
        row.make_readers()
