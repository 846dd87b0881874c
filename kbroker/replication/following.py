"""State machine of a followed partition: requests to the leader, and where to truncate.

Pure except for the log it is given: no socket and no clock. The io worker that owns the log
(``workers/io/followers``) sends what ``question`` returns, fetches while the state is FETCHING, and
reports the results here.

Every new leader epoch begins with TRUNCATING, even under the same leader: the follower may append
only after the last record that both logs have. INVARIANT: nothing is fetched in any state but
FETCHING.
"""

from __future__ import annotations

import logging
import zlib
from enum import Enum
from typing import NamedTuple, Protocol

from kbroker.errors import ErrorCode
from kbroker.replication.fetched_run import Fault
from kbroker.replication.truncation import (
    Cut,
    EpochEnd,
    EpochHistory,
    InvalidEpochEndError,
    cut_for,
    first_question,
)
from kbroker.types import Offset

logger = logging.getLogger(__name__)

# Timestamps of ListOffsets that stand for an end of the log.
LATEST, EARLIEST = -1, -2
# A corrupt batch is fetched this often before the partition is paused: the leader's disk, or the
# network, may be permanently damaged.
TRIES = 3
NOT_TOLD = frozenset({ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER})
# A leader that the controller has not told yet is asked again after this time, then after twice as
# long, and so on up to the backoff: with acks=all, producers wait for its followers.
SOON_MS = 20
# The time until a paused partition is retried without a change by the controller.
FAILED_RETRY_MS = 60_000


def fetcher_number(topic: str, partition: int, fetchers: int) -> int:
    """Which of the links to a leader a partition is copied over. fetchers: num.replica.fetchers."""
    return (zlib.crc32(topic.encode()) + partition) % max(fetchers, 1)


class FollowingState(Enum):
    """WAITING: for the controller, which has a later leader epoch. LOCATING: the log end is outside
    the leader's log, whose start or end is being looked up.
    """

    WAITING = "waiting"
    TRUNCATING = "truncating"
    FETCHING = "fetching"
    LOCATING = "locating"
    BACKOFF = "backoff"
    FAILED = "failed"


class FollowedLog(Protocol):
    """The log operations of a follower. An exception ends the step that called it."""

    @property
    def epochs(self) -> EpochHistory: ...
    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def log_end_offset(self) -> Offset: ...
    @property
    def high_watermark(self) -> Offset: ...

    def truncate_to(self, offset: Offset) -> Offset:
        """Truncate to ``offset`` or the batch boundary below; returns the new log end offset."""

    def restart_at(self, offset: Offset) -> None:
        """Delete all records; the next one gets this offset."""


class EpochQuestion(NamedTuple):
    """OffsetForLeaderEpoch: where did this epoch end in the leader's log?"""

    epoch: int


class OffsetQuestion(NamedTuple):
    """ListOffsets: LATEST or EARLIEST."""

    timestamp: int


Question = EpochQuestion | OffsetQuestion


class FollowedPartition:
    """name: for the broker's log. backoff_ms: replica.fetch.backoff.ms, kept up to date by the
    owner.
    """

    __slots__ = (
        "_fault_end",
        "_next_wait_ms",
        "_resume",
        "_tries",
        "_trouble",
        "backoff_ms",
        "committed_cuts",
        "leader",
        "leader_epoch",
        "log",
        "name",
        "question",
        "retry_at_ms",
        "state",
    )

    def __init__(self, name: str, log: FollowedLog, backoff_ms: int) -> None:
        self.name = name
        self.log = log
        self.backoff_ms = backoff_ms
        self.leader = -1
        self.leader_epoch = -1
        self.state = FollowingState.WAITING
        self.question: Question | None = None
        # Truncations below the high watermark.
        self.committed_cuts = 0
        # When ``resume`` is due, in states that end after a time.
        self.retry_at_ms: int | None = None
        self._resume = FollowingState.TRUNCATING
        self._tries = 0
        self._fault_end = -1
        self._next_wait_ms = SOON_MS
        self._trouble: str | None = None

    @property
    def is_fetching(self) -> bool:
        return self.state is FollowingState.FETCHING

    @property
    def asks(self) -> bool:
        """Whether ``question`` should be sent to the leader now."""
        return self.state in (FollowingState.TRUNCATING, FollowingState.LOCATING)

    # -- roles --

    def follow(self, leader: int, leader_epoch: int) -> None:
        """The controller has named a leader in a new leader epoch."""
        self.leader, self.leader_epoch = leader, leader_epoch
        self._tries, self._fault_end = 0, -1
        self._next_wait_ms = SOON_MS
        self._begin()

    def _begin(self) -> None:
        """Ask where the log diverges from the leader's.

        INVARIANT: nothing is cut before the leader has responded in its epoch. It may be gone, as
        after a start, and this broker be elected with what it has; so a log without epochs to ask
        about asks for anything.
        """
        step = first_question(self.log.epochs, self.log.log_end_offset, self.log.high_watermark)
        if not isinstance(step, Cut):
            self._enter(FollowingState.TRUNCATING, EpochQuestion(step))
        elif step.offset < self.log.log_end_offset:
            self._enter(FollowingState.TRUNCATING, OffsetQuestion(LATEST))
        else:
            self._enter(FollowingState.FETCHING)

    def _keep_committed(self) -> None:
        """Cut what is not known to be committed: nothing says where the logs diverge."""
        offset = min(self.log.high_watermark, self.log.log_end_offset)
        self._cut(offset, f"it has no leader epochs to compare with broker {self.leader}")
        self._enter(FollowingState.FETCHING)

    # -- responses --

    def on_epoch_end(self, error: int, leader_end: EpochEnd, now_ms: int) -> None:
        """Handle the response to an EpochQuestion; an outdated one is ignored."""
        if self.state is not FollowingState.TRUNCATING or not isinstance(
            self.question, EpochQuestion
        ):
            return
        if error:
            self._on_error(error, now_ms)
            return
        asked = self.question.epoch
        try:
            step = cut_for(
                leader_end, asked, self.log.epochs, self.log.log_end_offset, self.log.high_watermark
            )
        except InvalidEpochEndError as wrong:
            self._back_off(now_ms, f"wrong response of broker {self.leader}: {wrong}")
            return
        self._cut(
            step.offset,
            f"broker {self.leader}, which leads in epoch {self.leader_epoch}, says that epoch "
            f"{leader_end.epoch} ended at offset {leader_end.end_offset}; asked about "
            f"epoch {asked}",
        )
        latest = self.log.epochs.latest
        if step.is_final or latest is None:
            self._enter(FollowingState.FETCHING)
        else:
            self._enter(FollowingState.TRUNCATING, EpochQuestion(latest))

    def on_offset(self, error: int, offset: Offset, now_ms: int) -> None:
        """Handle the response to an OffsetQuestion; an outdated one is ignored."""
        if not self.asks or not isinstance(self.question, OffsetQuestion):
            return
        if error:
            self._on_error(error, now_ms)
            return
        if self.state is FollowingState.TRUNCATING:
            self._keep_committed()
            return
        end = self.log.log_end_offset
        if offset < 0:
            self._back_off(now_ms, f"broker {self.leader} says that its log is at offset {offset}")
        elif self.question.timestamp == LATEST:
            if offset >= end:
                self._enter(FollowingState.LOCATING, OffsetQuestion(EARLIEST))
                return
            self._cut(offset, f"the log of its leader {self.leader} ends there")
            self._enter(FollowingState.FETCHING)
        elif offset > end:
            logger.warning(
                "%s: the log of its leader %d begins at offset %d; every record here, up to offset "
                "%d, is dropped, and the log continues there",
                self.name, self.leader, offset, end,
            )  # fmt: skip
            self.log.restart_at(offset)
            self._enter(FollowingState.FETCHING)
        else:
            # The offset is in range according to the leader now, but was not before: wait before
            # fetching.
            self._back_off(now_ms, None, FollowingState.FETCHING)

    def on_fetch_error(self, error: int, now_ms: int) -> None:
        """Handle the error code of a fetch."""
        if self.state is not FollowingState.FETCHING:
            return
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._enter(FollowingState.LOCATING, OffsetQuestion(LATEST))
        else:
            self._on_error(error, now_ms)

    def on_fault(self, fault: Fault, text: str, now_ms: int) -> None:
        """A fetched batch was not appended."""
        if self.state is not FollowingState.FETCHING:
            return
        if fault is Fault.NO_ROOM:
            self._back_off(now_ms, text)
        elif fault is Fault.CLOSED:
            self._enter(FollowingState.WAITING)
        elif fault is Fault.EPOCH_AHEAD:
            # The controller's state for that epoch is on its way.
            self._back_off(now_ms, text, FollowingState.TRUNCATING)
        elif fault is Fault.EPOCH_BACK or fault.is_corrupt:
            self._try_again(
                now_ms,
                text,
                FollowingState.TRUNCATING if fault.is_divergent else FollowingState.FETCHING,
            )
        else:
            self._fail(now_ms, text)

    def _try_again(self, now_ms: int, text: str, resume: FollowingState) -> None:
        end = self.log.log_end_offset
        self._tries = self._tries + 1 if end == self._fault_end else 1
        self._fault_end = end
        if self._tries >= TRIES:
            self._fail(now_ms, text)
        else:
            self._back_off(now_ms, text, resume)

    def _on_error(self, error: int, now_ms: int) -> None:
        """Handle an error in any response about this partition."""
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            # At an orderly stop of a leader this is so for thousands of partitions, for a moment.
            logger.debug(
                "%s: broker %d leads in a later epoch than %d; waiting for the controller",
                self.name, self.leader, self.leader_epoch,
            )  # fmt: skip
            self._enter(FollowingState.WAITING)
        elif error == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            text = (
                "the records that come next are in tiered storage, which this version cannot read"
            )
            self._fail(now_ms, text)
        elif error in NOT_TOLD and self._next_wait_ms < self.backoff_ms:
            self._back_off(now_ms, None, wait_ms=self._next_wait_ms)
            self._next_wait_ms *= 2
        else:
            self._back_off(now_ms, f"broker {self.leader} responded with {_name(error)}")

    def pause(self, now_ms: int, text: str) -> None:
        """Pause because of another failure; the current step starts again later."""
        self._back_off(now_ms, text, FollowingState.TRUNCATING)

    def take_trouble(self) -> str | None:
        """Why it has backed off since the last call, if that is worth a line."""
        trouble, self._trouble = self._trouble, None
        return trouble

    # -- time --

    def resume(self, now_ms: int) -> None:
        """``retry_at_ms`` has passed: continue, or start again after a failure."""
        if self.retry_at_ms is None or now_ms < self.retry_at_ms:
            return
        if self._resume is FollowingState.TRUNCATING:
            self._begin()
        else:
            self._enter(self._resume, self.question)

    # -- states --

    def _enter(self, state: FollowingState, question: Question | None = None) -> None:
        self.state, self.question, self.retry_at_ms = state, question, None

    def _back_off(
        self,
        now_ms: int,
        text: str | None,
        resume: FollowingState | None = None,
        *,
        wait_ms: int | None = None,
    ) -> None:
        self._trouble = text
        self._resume = self.state if resume is None else resume
        question = self.question if self._resume is self.state else None
        self._enter(FollowingState.BACKOFF, question)
        self.retry_at_ms = now_ms + (self.backoff_ms if wait_ms is None else wait_ms)

    def _fail(self, now_ms: int, text: str) -> None:
        logger.error(
            "%s: %s; nothing more is copied until its leader changes, or for %d s",
            self.name, text, FAILED_RETRY_MS // 1000,
        )  # fmt: skip
        self._enter(FollowingState.FAILED)
        self._resume = FollowingState.TRUNCATING
        self.retry_at_ms = now_ms + FAILED_RETRY_MS

    def _cut(self, offset: Offset, why: str) -> None:
        """Truncate, or delete all records if the target is below the log start offset."""
        log = self.log
        end, high_watermark = log.log_end_offset, log.high_watermark
        if offset < log.log_start_offset:
            log.restart_at(offset)
        else:
            log.truncate_to(offset)
        if offset < high_watermark:
            self.committed_cuts += 1
            logger.warning(
                "%s: truncated from offset %d to %d, below the high watermark %d: %s",
                self.name, end, log.log_end_offset, high_watermark, why,
            )  # fmt: skip
        elif offset < end:
            logger.info(
                "%s: truncated from offset %d to %d: %s", self.name, end, log.log_end_offset, why
            )


def _name(error: int) -> str:
    try:
        return ErrorCode(error).name
    except ValueError:
        return f"error {error}"
