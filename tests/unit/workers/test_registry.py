"""The table of process kinds."""

from __future__ import annotations

import pytest

from kbroker.config.loader import BrokerConfig
from kbroker.ipc.process_table import ProcessKind
from kbroker.supervisor.arbiter import STOP_ORDER
from kbroker.workers.base import Worker
from kbroker.workers.registry import NETWORK_PROCESSES_MAX, START_ORDER

pytestmark = pytest.mark.unit


def counts(**settings: object) -> dict[ProcessKind, int]:
    config = BrokerConfig({name.replace("_", "."): str(value) for name, value in settings.items()})
    return {row.kind: len(row.addresses(config)) for row in START_ORDER}


def test_counts_follow_the_configuration() -> None:
    found = counts(num_io_threads=3, num_network_threads=2, metrics_port=0)

    assert found == {
        ProcessKind.CONTROLLER: 1,
        ProcessKind.IO_WORKER: 3,
        ProcessKind.NETWORK: 2,
        ProcessKind.ACCEPTOR: 1,
        ProcessKind.CLEANER: 1,
        ProcessKind.EXPORTER: 1,
    }


def test_cleaner_is_off_without_log_cleaner_enable() -> None:
    assert counts(log_cleaner_enable="false")[ProcessKind.CLEANER] == 0


def test_exporter_is_off_with_port_minus_1() -> None:
    assert counts(metrics_port=-1)[ProcessKind.EXPORTER] == 0


def test_network_processes_fit_the_wait_mask() -> None:
    assert counts(num_network_threads=100)[ProcessKind.NETWORK] == NETWORK_PROCESSES_MAX


def test_every_kind_has_its_place_in_the_stop_order() -> None:
    assert {row.kind for row in START_ORDER} <= set(STOP_ORDER)


@pytest.mark.parametrize("row", START_ORDER, ids=lambda row: row.kind.name)
def test_classes_load_and_say_their_kind(row) -> None:  # type: ignore[no-untyped-def]
    worker = row.load()

    assert issubclass(worker, Worker)
    assert worker.kind == row.kind
