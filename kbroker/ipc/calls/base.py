"""Definitions that several modules of the table of operations share."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.documents import Document
from kbroker.ipc.process_table import ProcessKind
from kbroker.security.principal import ANONYMOUS

ACCEPTOR = ProcessKind.ACCEPTOR
CLEANER = ProcessKind.CLEANER
CONTROLLER = ProcessKind.CONTROLLER
EXPORTER = ProcessKind.EXPORTER
IO_WORKER = ProcessKind.IO_WORKER
NETWORK = ProcessKind.NETWORK

# The longest wait for a change of topics.
CHANGE_MS = 30_000
NOBODY = str(ANONYMOUS)


class Nothing(Document):
    """The request of operations without arguments."""


class SettingValue(NamedTuple):
    name: str
    value: str | None
