"""Every kind of process of a broker: one row each.

To add a kind, add its row and write its class. Its operations are rows of ``ipc.calls``. The
supervisor imports the classes before it forks, so that all processes share one copy of the code.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kbroker.config.loader import BrokerConfig

# BOUND: a partition-table slot has one bit for each network process that waits on it.
NETWORK_PROCESSES_MAX = 64


def _one(config: BrokerConfig) -> int:
    return 1


class KindRow(NamedTuple):
    """One kind of process.

    title: in ps, logs and metrics. worker: ``module:class``, a subclass of ``workers.base.Worker``;
    empty for the supervisor. stops: its step in a shutdown; a process stops before those it
    depends on. count: how many there are. feeds: each has a request arena, and a lane to each io
    worker, under its number among those that feed. times: each records times of requests; these
    kinds come first.
    """

    title: str
    worker: str
    stops: int
    count: Callable[[BrokerConfig], int] = _one
    feeds: bool = False
    times: bool = False

    def load(self) -> Any:
        """Import the class."""
        module, _, name = self.worker.partition(":")
        return getattr(import_module(module), name)


class ProcessKind(IntEnum):
    """The kinds in the order in which they start; the number is part of message envelopes."""

    row: KindRow

    def __new__(cls, number: int, row: KindRow | None = None) -> ProcessKind:
        assert row is not None  # mypy takes a look-up by number for a call of this
        kind = int.__new__(cls, number)
        kind._value_ = number
        kind.row = row
        return kind

    SUPERVISOR = 0, KindRow("supervisor", "", 0)
    CONTROLLER = (
        4,
        KindRow("controller", "kbroker.workers.controller.process:ControllerWorker", 5, times=True),
    )
    IO_WORKER = (
        3,
        KindRow(
            "io",
            "kbroker.workers.io.io_worker:IoWorker",
            4,
            lambda c: c["num.io.threads"],
            times=True,
        ),
    )
    NETWORK = (
        2,
        KindRow(
            "network",
            "kbroker.workers.network.network:NetworkWorker",
            2,
            lambda c: min(c["num.network.threads"], NETWORK_PROCESSES_MAX),
            feeds=True,
            times=True,
        ),
    )
    ACCEPTOR = 1, KindRow("acceptor", "kbroker.workers.acceptor:AcceptorWorker", 1)
    CLEANER = (
        6,
        KindRow(
            "cleaner",
            "kbroker.workers.cleaner.cleaner:CleanerWorker",
            3,
            lambda c: int(c["log.cleaner.enable"]),
        ),
    )
    EXPORTER = (
        7,
        KindRow(
            "exporter",
            "kbroker.workers.exporter.exporter:ExporterWorker",
            6,
            lambda c: int(c["metrics.port"] >= 0),
        ),
    )

    @property
    def title(self) -> str:
        """``io``, ``network``."""
        return self.row.title


# What the supervisor starts.
WORKERS = {kind: kind.row for kind in ProcessKind if kind.row.worker}
# Steps of a shutdown.
STOP_ORDER = tuple(sorted(WORKERS, key=lambda kind: kind.row.stops))
