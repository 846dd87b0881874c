"""A log's producers after a start, beyond its snapshot."""

import pytest
from support.storage.log_store import batch, produce

from kbroker._ext.shared.partition_table import ONLINE
from kbroker.errors import ErrorCode
from kbroker.storage.log import log_producers

pytestmark = pytest.mark.unit

OUT_OF_ORDER_SEQUENCE_NUMBER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("clean", [True, False])
def test_idempotent_duplicate_is_known_after_a_restart(store, clean):
    """A client has five batches in flight, and a shutdown may lose the responses to all of them. If
    an earlier one got OUT_OF_ORDER_SEQUENCE_NUMBER, it would start a new epoch and write it twice.
    """
    config = {"segment.bytes": 14 + 3 * len(batch())}  # the five lie in two segments
    log = store.open(**config)
    for sequence in range(7):
        assert produce(log, sequence) == (0, 2 * sequence)
        assert produce(log, sequence, producer=10) == (0, 2 * sequence + 1)
    assert len(log.segments) > 2

    log = store.restart(clean=clean, **config)

    assert [produce(log, sequence) for sequence in range(2, 7)] == [
        (0, 2 * sequence) for sequence in range(2, 7)
    ]
    assert produce(log, 3, producer=10) == (0, 7)
    assert produce(log, 1)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 14


def test_idempotent_duplicate_is_known_after_a_restart_and_newer_batches(store):
    log = store.open()
    for sequence in range(5):
        produce(log, sequence)
    log = store.restart(clean=True)

    assert produce(log, 5) == (0, 5)
    assert produce(log, 3) == (0, 3)
    assert produce(log, 0)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER  # only five batches are kept
    assert produce(log, 1) == (0, 1)
    assert produce(log, 6) == (0, 6)


def test_idempotent_duplicates_of_a_former_run_are_looked_for_once_in_the_end_of_the_log(
    store, monkeypatch
):
    """The search takes the worker's time, so no client may cause it repeatedly, or for long."""
    walks = []
    walk_end = log_producers.walk_end
    monkeypatch.setattr(
        log_producers, "walk_end", lambda *args: (walks.append(args), walk_end(*args))
    )
    monkeypatch.setattr(log_producers, "RECALLED_BYTES", 2 * len(batch()))
    log = store.open(**{"index.interval.bytes": 1})
    for sequence in range(5):
        produce(log, sequence)
    log = store.restart(clean=True, **{"index.interval.bytes": 1})

    assert produce(log, 4) == (0, 4)
    assert not walks, "the last one is in the snapshot"
    assert produce(log, 0)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(log, 3) == (0, 3)
    assert produce(log, 0)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(walks) == 1


def test_damage_among_batches_of_a_former_run_takes_nothing_offline(store, monkeypatch):
    log = store.open()
    for sequence in range(3):
        produce(log, sequence)
    log = store.restart(clean=True)

    def walk_end(*_args):
        raise ValueError("no batch begins there")

    monkeypatch.setattr(log_producers, "walk_end", walk_end)

    assert produce(log, 0)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(log, 3) == (0, 3)
    assert store.slot()["state"] == ONLINE


@pytest.mark.parametrize("clean", [True, False])
def test_idempotent_state_survives_a_restart(store, clean):
    log = store.open(**{"segment.bytes": 300})
    for sequence in range(5):
        assert produce(log, sequence) == (0, sequence)

    log = store.restart(clean=clean, **{"segment.bytes": 300})

    assert produce(log, 4) == (0, 4)
    assert produce(log, 5) == (0, 5)
    assert produce(log, 7)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
