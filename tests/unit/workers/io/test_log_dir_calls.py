"""An io worker's log directories, and how it handles damage found by readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.log_store import LogStore, append, batch

from kbroker.ipc.calls import Damage, ReplicaSize, ReplicasToDescribe
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.workers.io.log_dir_calls import LogDirCalls

pytestmark = pytest.mark.unit

NETWORK = Address(ProcessKind.NETWORK, 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    made = LogStore(tmp_path, dirs=2)
    yield made
    made.stop(clean=False)


def service(store: LogStore) -> LogDirCalls:
    nobody: Any = SimpleNamespace(serve=lambda _operation, _function: None)
    return LogDirCalls(SimpleNamespace(rpc=nobody, table=store.table), store.manager)


def test_log_directories_are_described_with_the_logs_in_them(store: LogStore) -> None:
    append(store.open(), batch())
    store.manager.fail_log_dir(store.dirs[1], OSError(5, "broken"))

    first, second = service(store).serve_describe_log_dirs(NETWORK, ReplicasToDescribe(None))

    assert (first.path, first.error) == (store.dirs[0], None)
    assert first.logs == [ReplicaSize("t", 0, size=len(batch()))]
    assert second.error is not None and second.logs == []


@pytest.mark.parametrize(
    ("topics", "found"),
    [({"t": [0, 7]}, [0]), ({"t": [1], "u": [0]}, [1]), ({}, []), (None, [0, 1])],
)
def test_replicas_that_were_asked_for_are_described(
    store: LogStore, topics: dict[str, list[int]] | None, found: list[int]
) -> None:
    for slot in range(2):
        append(store.open(partition=slot, slot=slot), batch())

    described = service(store).serve_describe_log_dirs(NETWORK, ReplicasToDescribe(topics))

    assert sorted(row.partition for one in described for row in one.logs) == found


def test_damage_of_an_earlier_log_of_the_slot_is_not_reported(store: LogStore) -> None:
    """The reader still had a file of the deleted log."""
    append(store.open(), batch())
    calls = service(store)

    for incarnation, damaged in ((2, 0), (1, 1)):
        calls.serve_report_damage(NETWORK, Damage(0, incarnation, 0, 0, "a wrong checksum"))
        assert store.manager.check.damaged_count == damaged
    calls.serve_report_damage(NETWORK, Damage(7, 1, 0, 0, "a wrong checksum"))
    assert store.manager.check.damaged_count == 1
