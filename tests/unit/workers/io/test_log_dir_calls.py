"""An io worker's log directories, and how it handles damage found by readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.storage.log_store import LogStore, append, batch

from kbroker.ipc.calls import Damage, LogDirDescription, ReplicaSize, ReplicasToDescribe
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.workers.io.log_dir_calls import LogDirCalls

pytestmark = pytest.mark.unit

NETWORK = Address(ProcessKind.NETWORK, 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    made = LogStore(tmp_path, dirs=2)
    yield made
    made.stop(clean=False)


def service(store: LogStore, then: Callable[[Any], None] | None = None) -> LogDirCalls:
    """then: takes the process when the service sleeps for the first time; without it, all logs are
    open.
    """

    def sleep(_: float) -> Pending[None]:
        if then is not None and process.sleeps == 0:
            then(process)
        process.sleeps += 1
        slept: Pending[None] = Pending()
        slept.resolve()
        return slept

    rpc: Any = SimpleNamespace(serve=lambda _operation, _function: None, sleep=sleep)
    process: Any = SimpleNamespace(rpc=rpc, table=store.table, has_joined=then is None, sleeps=0)
    return LogDirCalls(process, store.manager)


def described(
    service: LogDirCalls, topics: dict[str, list[int]] | None = None
) -> list[LogDirDescription]:
    outcome = run(service.serve_describe_log_dirs(NETWORK, ReplicasToDescribe(topics)))
    assert outcome.done
    found: list[LogDirDescription] = outcome.value
    return found


def test_log_directories_are_described_with_the_logs_in_them(store: LogStore) -> None:
    append(store.open(), batch())
    store.manager.fail_log_dir(store.dirs[1], OSError(5, "broken"))

    first, second = described(service(store))

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

    log_dirs = described(service(store), topics)

    assert sorted(row.partition for log_dir in log_dirs for row in log_dir.logs) == found


def test_logs_that_are_being_opened_are_waited_for(store: LogStore) -> None:
    """A client that asked right after a start was told that there is nothing."""

    def open_all(process: Any) -> None:
        append(store.open(), batch())
        process.has_joined = True

    first, _ = described(service(store, open_all))

    assert first.logs == [ReplicaSize("t", 0, size=len(batch()))]


def test_logs_that_take_long_to_open_are_described_without_those_to_come(store: LogStore) -> None:
    append(store.open(), batch())

    first, _ = described(service(store, lambda _: None))

    assert [log.topic for log in first.logs] == ["t"]


def test_damage_of_an_earlier_log_of_the_slot_is_not_reported(store: LogStore) -> None:
    """The reader still had a file of the deleted log."""
    append(store.open(), batch())
    calls = service(store)

    for incarnation, damaged in ((2, 0), (1, 1)):
        calls.serve_report_damage(NETWORK, Damage(0, incarnation, 0, 0, "a wrong checksum"))
        assert store.manager.check.damaged_count == damaged
    calls.serve_report_damage(NETWORK, Damage(7, 1, 0, 0, "a wrong checksum"))
    assert store.manager.check.damaged_count == 1
