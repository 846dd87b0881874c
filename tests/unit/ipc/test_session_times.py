"""The times of followers' sessions in shared memory."""

from __future__ import annotations

import os

import pytest

from kbroker._ext.shared.session_times import CELLS, SessionTimes, region_size
from kbroker.ipc.regions import create_region

pytestmark = pytest.mark.unit


def test_io_worker_reads_what_a_network_process_noted() -> None:
    region = create_region("test-sessions", region_size(2))
    owner = SessionTimes(region)

    pid = os.fork()
    if pid == 0:
        network = SessionTimes(region, 1)
        os._exit(network.take_cell(1000) - CELLS)
    assert os.waitpid(pid, 0)[1] == 0

    assert owner.count == 2 * CELLS
    assert owner.read(CELLS) == 1000
    assert owner.read(0) == 0


def test_cells_are_in_the_row_of_their_process() -> None:
    region = create_region("test-sessions", region_size(2))
    first, second = SessionTimes(region, 0), SessionTimes(region, 1)

    cells = {second.take_cell(5) for _ in range(CELLS)}

    assert cells == set(range(CELLS, 2 * CELLS))
    assert second.take_cell(5) == -1  # all are taken
    assert first.take_cell(5) == 0
    with pytest.raises(IndexError):
        first.free_cell(CELLS)


def test_freed_cell_is_not_used_again_at_once() -> None:
    """An owner that does not know yet that the session has ended would read another's time."""
    times = SessionTimes(create_region("test-sessions", region_size(1)), 0)
    first = times.take_cell(5)
    times.free_cell(first)

    others = [times.take_cell(6) for _ in range(CELLS)]

    assert others[0] != first
    assert others[-1] == first


def test_restarted_process_finds_its_row_empty() -> None:
    region = create_region("test-sessions", region_size(2))
    before, other = SessionTimes(region, 0), SessionTimes(region, 1)
    cell, others_cell = before.take_cell(7), other.take_cell(8)

    again = SessionTimes(region, 0)

    assert again.read(cell) == 0
    assert again.read(others_cell) == 8


def test_time_is_never_that_of_no_session() -> None:
    times = SessionTimes(create_region("test-sessions", region_size(1)), 0)
    cell = times.take_cell(0)

    assert times.read(cell) == 1
    times.note_request(cell, 44)
    assert times.read(cell) == 44


@pytest.mark.parametrize("cell", [-1, 2 * CELLS, -(2**31)])
def test_cell_that_does_not_exist_has_no_time(cell: int) -> None:
    times = SessionTimes(create_region("test-sessions", region_size(2)))
    assert times.read(cell) == -1
    assert times.take_cell(9) == -1  # a process without a row


def test_row_outside_the_region_is_refused() -> None:
    with pytest.raises(ValueError, match="no row for network process 2"):
        SessionTimes(create_region("test-sessions", region_size(2)), 2)
