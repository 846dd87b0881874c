"""The table of process kinds."""

from __future__ import annotations

import pytest

from kbroker.config.loader import BrokerConfig
from kbroker.ipc.process_kinds import NETWORK_PROCESSES_MAX, STOP_ORDER, WORKERS, ProcessKind
from kbroker.workers.base import Worker

pytestmark = pytest.mark.unit


def counts(**settings: object) -> dict[ProcessKind, int]:
    config = BrokerConfig({name.replace("_", "."): str(value) for name, value in settings.items()})
    return {kind: row.count(config) for kind, row in WORKERS.items()}


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


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        (ProcessKind.IO_WORKER, ProcessKind.CONTROLLER),
        (ProcessKind.NETWORK, ProcessKind.IO_WORKER),
        (ProcessKind.ACCEPTOR, ProcessKind.NETWORK),
        (ProcessKind.CLEANER, ProcessKind.IO_WORKER),
    ],
)
def test_whoever_depends_on_a_process_starts_after_it_and_stops_before_it(
    kind: ProcessKind, needed: ProcessKind
) -> None:
    started = list(WORKERS)
    assert started.index(kind) > started.index(needed)
    assert STOP_ORDER.index(kind) < STOP_ORDER.index(needed)


def test_exporter_stops_last() -> None:
    """It shows the progress of the others."""
    assert STOP_ORDER[-1] == ProcessKind.EXPORTER


def test_kinds_have_steps_titles_and_numbers_of_their_own() -> None:
    for values in (
        [kind.value for kind in ProcessKind],
        [kind.title for kind in ProcessKind],
        [row.stops for row in WORKERS.values()],
    ):
        assert len(set(values)) == len(values)


@pytest.mark.parametrize("kind", WORKERS, ids=lambda kind: kind.name)
def test_classes_load_and_say_their_kind(kind: ProcessKind) -> None:
    worker = kind.row.load()

    assert issubclass(worker, Worker)
    assert worker.kind is kind


@pytest.mark.parametrize("kind", ProcessKind, ids=lambda kind: kind.name)
def test_kind_is_found_by_the_number_of_an_envelope(kind: ProcessKind) -> None:
    assert ProcessKind(int(kind)) is kind
