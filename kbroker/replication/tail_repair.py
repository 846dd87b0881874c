"""Tail repair: which records a new leader takes from the other replicas before it leads.

A broker that was the last in-sync replica and lost power comes back without its newest records, is
elected, and would have every other replica truncate them too. So it first asks each of them for
what follows its own log end. Replicas that have heard of the new leader epoch follow nobody else
any more: what they have is final, and what they are missing is not committed.

Only a replica whose log contains the whole log that is here is taken from; its epochs prove that
(KIP-595), or before Fetch version 12 the bytes of the last batch. Of replicas that continue it
differently, the one with the later last epoch wins, then the longer, as in an election by log.

Pure except for the log it is given: no socket and no clock. The io worker (``workers/io/
tail_repairs``) sends what ``next_question`` returns, one question at a time, and reports the
answer. INVARIANT: nothing below the log end at the start of the first repair is changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from kbroker.batch_errors import CorruptBatchError
from kbroker.errors import ErrorCode
from kbroker.record.batch import iterate_batches
from kbroker.replication.fetched_run import Appended, Fault
from kbroker.replication.partition import least_in_sync
from kbroker.replication.truncation import EpochEnd, EpochHistory, InvalidEpochEndError, cut_for
from kbroker.types import Offset

RETRY_MS = 200
# A replica that has been away for a while may stay away for days.
RETRIES_SOON, RETRY_LATER_MS = 50, 2_000
NO_EPOCH = -1


class Epochs(EpochHistory, Protocol):
    def epoch_for(self, offset: Offset) -> int | None:
        """The epoch that wrote ``offset``."""


class RepairedLog(Protocol):
    """The log operations of a repair. An exception ends the step that called it."""

    @property
    def epochs(self) -> Epochs: ...
    @property
    def log_end_offset(self) -> Offset: ...

    def truncate_to(self, offset: Offset) -> Offset:
        """Truncate to ``offset``, which is a batch boundary."""

    def append(self, records: bytes | memoryview, epoch_max: int) -> Appended:
        """Append whole batches of leader epochs up to ``epoch_max``."""

    def last_batch(self) -> tuple[Offset, bytes]:
        """The base offset and the bytes of the last batch; the log end and none if it is empty."""


class TailQuestion(NamedTuple):
    """A fetch. last_epoch: of the record before ``offset``, which the other log must have, too;
    NO_EPOCH: not checked. proof: the bytes with which the answer must begin.
    """

    offset: Offset
    last_epoch: int = NO_EPOCH
    proof: bytes = b""


class Answer(NamedTuple):
    """The part of a fetch response about the partition."""

    error: int
    diverging: EpochEnd | None = None
    records: bytes | memoryview = b""


class RepairState(Enum):
    """WEIGHING: its log continues differently; reading on to see which one counts."""

    EXTENDING = "extending"
    WEIGHING = "weighing"
    DONE = "done"


class RepairSource:
    """Another replica of the partition."""

    __slots__ = (
        "at",
        "broker",
        "common",
        "proven_end",
        "retries",
        "retry_at_ms",
        "said",
        "state",
        "weighed",
    )

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.state = RepairState.EXTENDING
        # The outcome, or what keeps it from being known.
        self.said = "has not been asked"
        self.retries = self.retry_at_ms = 0
        # Its log is known to have everything here up to this log end.
        self.proven_end = -1
        # While it is weighed: where the logs part, where to read on, its last epoch and end so far.
        self.common = self.at = Offset(0)
        self.weighed = (NO_EPOCH, Offset(0))

    def end(self, said: str) -> None:
        self.state, self.said = RepairState.DONE, said

    def retry(self, said: str, now_ms: int) -> None:
        self.state, self.said = RepairState.EXTENDING, said
        self.proven_end = -1
        self.retries += 1
        self.retry_at_ms = now_ms + (RETRY_MS if self.retries <= RETRIES_SOON else RETRY_LATER_MS)


class TailRepair:
    """leader_epoch: in which this broker is to lead. brokers: the other replicas. by_epoch: whether
    fetches may name the last epoch (version 12). continues: the repair of this log that did not end
    before the leader epoch began. What it took is not this broker's own: others may have it better.
    """

    def __init__(
        self,
        log: RepairedLog,
        leader_epoch: int,
        brokers: Iterable[int],
        *,
        by_epoch: bool,
        continues: TailRepair | None = None,
    ) -> None:
        self.log = log
        self.leader_epoch = leader_epoch
        self.first_end = log.log_end_offset
        if continues is not None:
            self.first_end = min(self.first_end, continues.first_end)
        self._by_epoch = by_epoch
        self._sources = {broker: RepairSource(broker) for broker in brokers}

    @property
    def is_done(self) -> bool:
        return not self.unknown

    @property
    def unknown(self) -> list[int]:
        """The replicas whose logs have not been compared with this one."""
        return [one.broker for one in self._sources.values() if one.state is not RepairState.DONE]

    def may_end(self, copies: int) -> bool:
        """Whether no record that was on ``copies`` replicas is in the unknown logs alone. This
        broker's copy may be lost; of one copy nothing more can be said. copies: by
        min.insync.replicas, which may be more than there are replicas.
        """
        copies = least_in_sync(copies, 1 + len(self._sources))
        return copies <= 1 or len(self.unknown) < copies - 1

    @property
    def outcome(self) -> str:
        """What each replica had to say, for the broker's log."""
        return ", ".join(f"broker {one.broker} {one.said}" for one in self._sources.values())

    def next_question(self, now_ms: int) -> tuple[int, TailQuestion] | None:
        """The next question and whom to ask; None if everybody is to be asked later, or nobody."""
        for source in self._sources.values():
            if source.state is not RepairState.DONE and source.retry_at_ms <= now_ms:
                return source.broker, self._question(source)
        return None

    def next_ms(self) -> int | None:
        """When ``next_question`` has something."""
        waiting = [
            one.retry_at_ms for one in self._sources.values() if one.state is not RepairState.DONE
        ]
        return min(waiting, default=None)

    def _question(self, source: RepairSource) -> TailQuestion:
        log = self.log
        if source.state is RepairState.WEIGHING:
            epoch = log.epochs.epoch_for(Offset(source.at - 1)) if source.at else None
            is_proven = source.at != source.common or epoch is None
            return TailQuestion(source.at, NO_EPOCH if is_proven else epoch or 0)
        end = log.log_end_offset
        if self._by_epoch:
            latest = log.epochs.latest
            return TailQuestion(end, NO_EPOCH if latest is None else latest)
        if source.proven_end == end:
            return TailQuestion(end)
        base_offset, data = log.last_batch()
        return TailQuestion(base_offset, proof=data)

    # -- answers --

    def on_failure(self, broker: int, why: str, now_ms: int) -> None:
        """There was no answer."""
        self._sources[broker].retry(why, now_ms)

    def on_answer(self, broker: int, question: TailQuestion, answer: Answer, now_ms: int) -> None:
        """May change the log. Raises what the log raises."""
        source = self._sources[broker]
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            source.end("has nothing that follows this log")
        elif answer.error:
            # It has not heard of this leader epoch yet, is starting, or has its log offline.
            source.retry(f"answers {_name(answer.error)}", now_ms)
        elif answer.diverging is not None:
            self._on_diverging(source, question, answer.diverging)
        elif source.state is RepairState.WEIGHING:
            self._weigh(source, answer.records)
        else:
            self._extend(source, question, answer.records, now_ms)

    def _extend(
        self, source: RepairSource, question: TailQuestion, records: bytes | memoryview, now_ms: int
    ) -> None:
        if records[: len(question.proof)] != question.proof:
            source.end(f"has another batch at offset {question.offset}")
            return
        source.proven_end = self.log.log_end_offset
        tail = records[len(question.proof) :]
        if not tail:
            if not question.proof:  # else the answer may have ended with that batch
                source.end(f"has nothing after offset {self.log.log_end_offset}")
            return
        # Records of the leader epoch itself are this broker's own: it led in it before.
        outcome = self.log.append(tail, self.leader_epoch)
        source.proven_end = self.log.log_end_offset
        if outcome.fault in (Fault.NO_ROOM, Fault.CLOSED):
            source.retry("has records for which there is no room", now_ms)
        elif outcome.fault is not Fault.NONE or not outcome.taken:
            source.end(
                f"has a batch at offset {outcome.base_offset} that cannot be appended "
                f"({outcome.fault.name})"
            )

    def _on_diverging(self, source: RepairSource, question: TailQuestion, end: EpochEnd) -> None:
        """Find the last offset up to which both logs are the same."""
        try:
            cut = cut_for(
                end, question.last_epoch, self.log.epochs, question.offset, self.first_end
            )
        except InvalidEpochEndError as error:
            source.end(f"contradicts itself: {error}")
            return
        if cut.offset < self.first_end or end.end_offset < 0:
            source.end(f"has other records from offset {max(cut.offset, 0)} on")
        elif cut.offset >= question.offset:
            source.end("contradicts itself about its epochs")
        else:
            source.state = RepairState.WEIGHING
            source.common = source.at = cut.offset
            source.weighed = (NO_EPOCH, Offset(0))

    def _weigh(self, source: RepairSource, records: bytes | memoryview) -> None:
        """Read its continuation to the end; only then its last epoch is known."""
        before = source.at
        try:
            for batch in iterate_batches(records, partial_tail=True):
                source.at = Offset(batch.next_offset)
                source.weighed = (batch.header.partition_leader_epoch, source.at)
        except CorruptBatchError as error:
            source.end(f"has a batch at offset {source.at} that is damaged: {error}")
            return
        if records and source.at > before:
            return
        latest = self.log.epochs.latest
        ours = (NO_EPOCH if latest is None else latest, self.log.log_end_offset)
        if source.weighed <= ours or source.weighed[0] > self.leader_epoch:
            source.end(f"has nothing newer than this log from offset {source.common} on")
            return
        self.log.truncate_to(source.common)
        source.state = RepairState.EXTENDING
        source.proven_end = self.log.log_end_offset


def _name(error: int) -> str:
    try:
        return ErrorCode(error).name
    except ValueError:
        return f"error {error}"
