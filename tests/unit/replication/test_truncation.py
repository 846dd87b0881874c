"""Where a follower truncates its log. The examples are those of KIP-101 and KIP-279."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.storage.log_store import LogStore, append, batch

from kbroker._ext.shared.partition_table import LEADER
from kbroker.replication.truncation import (
    UNDEFINED,
    Cut,
    EpochEnd,
    InvalidEpochEndError,
    cut_for,
    first_question,
)
from kbroker.storage.segments.leader_epochs import LeaderEpochs

pytestmark = pytest.mark.unit


def history(path: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    found = LeaderEpochs(str(path))
    for epoch, start in entries:
        found.assign(epoch, start, write=False)
    return found


def cut(path: Path, entries: list[tuple[int, int]], end: int, response: tuple[int, int]) -> Cut:
    """The cut of a follower with these epochs and this log end, which asks about its latest epoch;
    its high watermark is 1.
    """
    epochs = history(path, *entries)
    latest = epochs.latest
    assert latest is not None
    return cut_for(EpochEnd(*response), latest, epochs, end, 1)


def test_log_with_epochs_asks_about_the_latest(tmp_path):
    assert first_question(history(tmp_path, (0, 0), (4, 7)), 9, 5) == 4


@pytest.mark.parametrize(("watermark", "offset"), [(5, 5), (12, 9)])
def test_log_without_epochs_keeps_what_is_committed(tmp_path, watermark, offset):
    assert first_question(history(tmp_path), 9, watermark) == Cut(offset, True)


@pytest.mark.parametrize(
    ("end", "response", "expected"),
    [
        (10, (2, 10), 10),  # same log
        (10, (2, 30), 10),  # the leader has more of it
        (10, (2, 8), 8),  # this log has more records of it: they were not committed
        (10, (2, 5), 5),  # all of it
    ],
)
def test_epoch_that_both_have_ends_where_it_ends_first(tmp_path, end, response, expected):
    assert cut(tmp_path, [(0, 0), (2, 5)], end, response) == Cut(expected, True)


def test_epochs_that_the_leader_lacks_go_at_once(tmp_path):
    """The leader has nothing of epochs 3 and 2; epoch 1 ended at 4 there, at 6 here."""
    assert cut(tmp_path, [(1, 0), (2, 6), (3, 8)], 10, (1, 4)) == Cut(4, True)


def test_epoch_that_only_the_leader_has_is_asked_around(tmp_path):
    """Without the second request a record that only this log has would stay (KIP-279)."""
    assert cut(tmp_path, [(0, 0), (3, 5)], 10, (2, 7)) == Cut(5, False)


def test_epoch_before_all_that_is_known_cuts_where_that_begins(tmp_path):
    """This log has epoch 5 from 10 on, and the leader has epoch 3 up to 15."""
    assert cut(tmp_path, [(5, 10)], 20, (3, 15)) == Cut(10, True)


def test_leader_that_knows_no_epochs_leaves_what_is_committed(tmp_path):
    assert cut(tmp_path, [(0, 0)], 10, (UNDEFINED, UNDEFINED)) == Cut(1, True)


def test_response_without_an_epoch_is_taken_at_its_word(tmp_path):
    assert cut(tmp_path, [(0, 0)], 10, (UNDEFINED, 7)) == Cut(7, True)
    assert cut(tmp_path, [(0, 0)], 10, (UNDEFINED, 70)) == Cut(10, True)


def test_response_about_a_later_epoch_than_asked_cuts_nothing(tmp_path):
    with pytest.raises(InvalidEpochEndError, match="asked where epoch 2 ended"):
        cut(tmp_path, [(0, 0), (2, 5)], 10, (3, 8))


def test_response_about_an_epoch_after_all_that_is_known_is_taken_at_its_word(tmp_path):
    """A fetch may name an epoch that this log has lost since."""
    assert cut_for(EpochEnd(4, 6), 5, history(tmp_path, (2, 0)), 10, 1) == Cut(6, True)


def test_cut_behind_the_log_end_drops_an_epoch_that_wrote_nothing(tmp_path):
    """This broker led in epoch 5 and wrote nothing; the next leader's records have epoch 4."""
    store = LogStore(tmp_path)
    log = store.open(leader_epoch=4)
    append(log, batch(3))
    log.take_role(LEADER, 5, 0)
    assert log.epochs.entries == [(4, 0), (5, 3)]

    assert log.truncate_to(3, 0) == 3

    assert log.epochs.entries == [(4, 0)]
    store.stop(clean=False)
