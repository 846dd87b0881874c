"""Moves between log directories, continued by an io worker between its turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.storage.log_store import LogStore, append, batch

from kbroker._ext.io.io_loop import IoLoop
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode
from kbroker.ipc.calls import MoveReplicas, ReplicaToMove
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.workers.io import log_moving
from kbroker.workers.io.log_moving import LogMovingService

pytestmark = pytest.mark.unit

CALLER = Address(ProcessKind.NETWORK, 0)


class Process:
    """An io worker for the service, over a log in slot 0."""

    def __init__(self, path: Path) -> None:
        self.store = LogStore(path, dirs=2)
        self.config = BrokerConfig({})
        self.rpc: Any = SimpleNamespace(serve=lambda _operation, _function: None)
        self.loading: set[int] = set()
        self.offline: list[int] = []
        self.loop = IoLoop(self.store.table, [], [], pytest.fail)
        self.log = self.store.open()
        append(self.log, batch())
        self.service = LogMovingService(self, self.store.manager, self.loop)
        self.target = next(d for d in self.store.dirs if d != self.log.log_dir)

    def is_loading(self, slot: int) -> bool:
        return slot in self.loading

    def on_failed_slots(self, slots: Sequence[int]) -> None:
        self.offline += slots

    def ask_for_move(self) -> list[int]:
        asked = MoveReplicas([ReplicaToMove("t", 0, 0, self.target)])
        return self.service.serve_alter_replica_log_dirs(CALLER, asked)

    def turns(self) -> None:
        for _ in range(20):
            self.store.manager.collect_background()
            self.service.end_turn()
            self.store.clock.advance(10_000)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    made = Process(tmp_path)
    monkeypatch.setattr(log_moving, "now_ms", made.store.clock.monotonic_ms)
    yield made
    made.store.stop(clean=False)


def test_log_stays_where_it_is_while_a_coordinator_reads_it(process: Process) -> None:
    process.loading.add(0)
    assert process.ask_for_move() == [ErrorCode.NONE]
    process.turns()
    assert process.log.log_dir != process.target

    process.loading.clear()
    process.turns()

    assert process.log.log_dir == process.target


def test_directory_that_fails_takes_its_logs_offline(process: Process) -> None:
    source = process.store.manager.dirs.at(process.log.log_dir)

    process.store.manager.moves.on_failed_dir(source, OSError(5, "broken"))

    assert process.offline == [0]
    assert process.store.manager.log(0) is None
