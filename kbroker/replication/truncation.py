"""Where a follower truncates its log before it follows a leader: after what both have.

KIP-101 and KIP-279, without a log or a clock. In one leader epoch one broker appends, so two logs
that have records of an epoch have the same ones, up to where one of them ends, and the same ones
before it. The follower asks with its latest epoch where that ended in the leader's log
(OffsetForLeaderEpoch) and cuts its own; until both have the epoch that the leader answers with, it
asks again with its then latest one. Each question is of an earlier epoch, so there is an end to it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kbroker.types import Offset

UNDEFINED = -1


class EpochHistory(Protocol):
    """``storage.segments.leader_epochs.LeaderEpochs``, as far as it is needed here."""

    @property
    def latest(self) -> int | None:
        """The latest epoch, None if none is known."""

    def end_offset_for(self, epoch: int, log_end_offset: Offset) -> tuple[int, Offset] | None:
        """(largest known epoch <= ``epoch``, where it ended)."""


class EpochEnd(NamedTuple):
    """What a leader answers: the largest epoch of its log that is not above the one asked for, and
    where it ended there. Either may be UNDEFINED.
    """

    epoch: int
    end_offset: Offset


class Cut(NamedTuple):
    """Truncate to ``offset``, at or below the log end; then follow, or ask again if not final."""

    offset: Offset
    is_final: bool


class WrongAnswerError(ValueError):
    """A response that no leader gives: the caller retries later, and truncates nothing."""


def first_question(
    epochs: EpochHistory, log_end_offset: Offset, high_watermark: Offset
) -> int | Cut:
    """The epoch to ask the leader about, or where to cut without a question: a log without epochs
    (message formats 0 and 1) keeps what is committed, as far as it knows.
    """
    latest = epochs.latest
    if latest is None:
        return Cut(min(high_watermark, log_end_offset), True)
    return latest


def cut_for(
    answer: EpochEnd,
    asked: int,
    epochs: EpochHistory,
    log_end_offset: Offset,
    high_watermark: Offset,
) -> Cut:
    """What follows from the leader's response for epoch ``asked``.

    A fetch that is answered with a diverging epoch (KIP-595) is the same: ``asked`` is its last
    fetched epoch. After a cut that is not final ask about the latest epoch that is left; if
    there is none, follow. Raises WrongAnswerError.
    """
    if answer.end_offset < 0:
        # (a) The leader knows no epoch that old: its log is of formats 0 and 1, or has none.
        return Cut(min(high_watermark, log_end_offset), True)
    if answer.epoch < 0:
        # (b) WIRE: version 0 does not say which epoch ended there.
        return Cut(min(answer.end_offset, log_end_offset), True)
    if answer.epoch > asked:
        raise WrongAnswerError(
            f"asked where epoch {asked} ended, the leader answered for epoch {answer.epoch}"
        )
    own = epochs.end_offset_for(answer.epoch, log_end_offset)
    if own is None:
        # (c) Nothing is known of that epoch, as it is newer than all that is known here.
        return Cut(min(answer.end_offset, log_end_offset), True)
    epoch, end_offset = own
    if epoch < answer.epoch:
        # (d) Not in this log; whatever is above the last epoch before it is not in the leader's.
        return Cut(min(end_offset, log_end_offset), False)
    # (e) Both have it, or it is older than all that is known here: then `end_offset` is where that
    # begins, and nothing from there on is the leader's.
    return Cut(min(answer.end_offset, end_offset, log_end_offset), True)
