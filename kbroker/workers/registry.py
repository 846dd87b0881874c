"""Every kind of child process: its class, how many there are, and the order in which they start.

To add a kind of process, add a row here and its place in ``STOP_ORDER`` of ``supervisor.arbiter``.
The supervisor imports the classes before it forks, so that all processes share one copy of the
code.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from kbroker.config.loader import BrokerConfig
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.workers.base import Worker

# BOUND: a partition-table slot has one bit for each network process that waits for it.
NETWORK_PROCESSES_MAX = 64


class ProcessRow(NamedTuple):
    """One kind of process."""

    kind: ProcessKind
    module: str
    class_name: str
    count: Callable[[BrokerConfig], int]

    def load(self) -> type[Worker]:
        """Import the class."""
        worker: type[Worker] = getattr(import_module(self.module), self.class_name)
        return worker

    def addresses(self, config: BrokerConfig) -> list[Address]:
        """The addresses of all processes of this kind."""
        return [Address(self.kind, index) for index in range(self.count(config))]


def _one(config: BrokerConfig) -> int:
    return 1


def _exporters(config: BrokerConfig) -> int:
    return 1 if config["metrics.port"] >= 0 else 0


def _cleaners(config: BrokerConfig) -> int:
    return 1 if config["log.cleaner.enable"] else 0


START_ORDER = (
    ProcessRow(ProcessKind.CONTROLLER, "kbroker.workers.controller", "ControllerWorker", _one),
    ProcessRow(
        ProcessKind.IO_WORKER,
        "kbroker.workers.io_worker",
        "IoWorker",
        lambda c: c["num.io.threads"],
    ),
    ProcessRow(
        ProcessKind.NETWORK,
        "kbroker.workers.network",
        "NetworkWorker",
        lambda c: min(c["num.network.threads"], NETWORK_PROCESSES_MAX),
    ),
    ProcessRow(ProcessKind.ACCEPTOR, "kbroker.workers.acceptor", "AcceptorWorker", _one),
    ProcessRow(ProcessKind.CLEANER, "kbroker.workers.cleaner", "CleanerWorker", _cleaners),
    ProcessRow(ProcessKind.EXPORTER, "kbroker.workers.exporter", "ExporterWorker", _exporters),
)
