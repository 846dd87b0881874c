"""Computes where a follower truncates its log: after the last record that the leader has too.

KIP-101 and KIP-279, without a log or a clock. Only one broker appends in a leader epoch, so two
logs that both have records of an epoch have the same ones up to the end of the shorter, and the
same ones before that epoch. The follower asks where its latest epoch ended in the leader's log
(OffsetForLeaderEpoch) and truncates; it asks again with its new latest epoch until its log has the
epoch in the response. Every request is for an earlier epoch, so this terminates.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kbroker.types import Offset

UNDEFINED = -1


class EpochHistory(Protocol):
    """The part of ``storage.segments.leader_epochs.LeaderEpochs`` used here."""

    @property
    def latest(self) -> int | None:
        """The latest epoch, None if none is known."""

    def end_offset_for(self, epoch: int, log_end_offset: Offset) -> tuple[int, Offset] | None:
        """(largest known epoch <= ``epoch``, where it ended)."""


class EpochEnd(NamedTuple):
    """The leader's response: the largest epoch in its log up to the requested one, and its end
    offset. Either may be UNDEFINED.
    """

    epoch: int
    end_offset: Offset


class Cut(NamedTuple):
    """Truncate to ``offset``, at or below the log end; then follow, or ask again if not final."""

    offset: Offset
    is_final: bool


class InvalidEpochEndError(ValueError):
    """An impossible response: the caller retries later and truncates nothing."""


def first_question(
    epochs: EpochHistory, log_end_offset: Offset, high_watermark: Offset
) -> int | Cut:
    """The epoch to ask the leader about, or where to truncate without asking: a log without epochs
    (message formats 0 and 1) is truncated to its high watermark.
    """
    latest = epochs.latest
    if latest is None:
        return Cut(min(high_watermark, log_end_offset), True)
    return latest


def cut_for(
    leader_end: EpochEnd,
    asked: int,
    epochs: EpochHistory,
    log_end_offset: Offset,
    high_watermark: Offset,
) -> Cut:
    """Where to truncate after the leader's response for epoch ``asked``.

    A diverging epoch in a fetch response (KIP-595) is the same: ``asked`` is the last fetched epoch
    then. After a cut that is not final, ask about the latest epoch that is left; if there is none,
    follow. Raises InvalidEpochEndError.
    """
    if leader_end.end_offset < 0:
        # (a) The leader knows no epoch that old: its log is of formats 0 and 1, or has none.
        return Cut(min(high_watermark, log_end_offset), True)
    if leader_end.epoch < 0:
        # (b) WIRE: version 0 does not say which epoch ended there.
        return Cut(min(leader_end.end_offset, log_end_offset), True)
    if leader_end.epoch > asked:
        raise InvalidEpochEndError(
            f"asked where epoch {asked} ended, the leader responded for epoch {leader_end.epoch}"
        )
    own = epochs.end_offset_for(leader_end.epoch, log_end_offset)
    if own is None:
        # (c) Nothing is known of that epoch, as it is newer than all that is known here.
        return Cut(min(leader_end.end_offset, log_end_offset), True)
    epoch, end_offset = own
    if epoch < leader_end.epoch:
        # (d) Not in this log; whatever is above the last epoch before it is not in the leader's.
        return Cut(min(end_offset, log_end_offset), False)
    # (e) Both have it, or it is older than all that is known here: then `end_offset` is where that
    # begins, and nothing from there on is the leader's.
    return Cut(min(leader_end.end_offset, end_offset, log_end_offset), True)
