"""The driver's part of exactly-once writes: the transactions of all tasks are committed, or none.

``commit_written`` is for tasks that wrote, ``complete_recorded`` for a repetition that found the
batch recorded, ``abort_attempt`` for a job that failed. What is recorded may have been aborted by
the cluster meanwhile, as transactions time out: where nothing of the batch is visible the record is
withdrawn and the next run rewrites it; where a part is, ``lostTransactions`` decides, as neither
choice is exactly once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.client.batches.transactions import (
    Outcome,
    ProducerIdentity,
    end_transaction,
    init_producer,
    is_open,
    open_transactional_ids,
    outcome,
)
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, RejectedError
from kbroker.errors import ErrorCode
from kbroker.spark.intents import Intents, Recorded
from kbroker.spark.options.options import WriteOptions

logger = logging.getLogger(__name__)

_NAMED_MAX = 5


class WriteAttempt(NamedTuple):
    """name: unique among the attempts at the batch; empty if unknown."""

    write: str
    batch: int
    name: str


def transactional_id(options: WriteOptions, write: str, batch: int, partition: int) -> str:
    """The transactional id of a task. Two consecutive batches use the same ids, so that there are
    few.
    """
    return f"{options.transactional_id_prefix}.{write}.{batch % 2}.{partition}"


def commit_written(
    cluster: Cluster,
    options: WriteOptions,
    write: str,
    batch: int,
    identities: Sequence[ProducerIdentity],
) -> None:
    """Commit the transactions that tasks left open. Raises RejectedError if one is no longer open;
    then nothing is committed.
    """
    _require_open(cluster, identities)
    intents = intents_of(cluster, options)
    recorded = intents.record(write, batch, identities)
    for identity in identities:
        end_transaction(cluster, identity, commit=True)
    intents.mark_done(write, batch, recorded)
    _abort_left_over(cluster, options, write, identities)


def abort_attempt(
    cluster: Cluster,
    options: WriteOptions,
    attempt: WriteAttempt,
    identities: Sequence[ProducerIdentity],
    silent: Iterable[int],
) -> None:
    """Abort the transactions that tasks left open, so that no reader waits for them, except
    recorded ones: the next run commits those.

    silent: the partitions of tasks that told nothing: they failed, were killed, still run, or have
    yet to begin. Who has got his transactional id before this is fenced; who gets it later finds
    the mark, as he looks for it after that. (An attempt of which no name is known is not marked.)
    """
    intents = intents_of(cluster, options)
    if intents.find(attempt.write, attempt.batch) is not None:
        return
    try:
        for identity in identities:
            try:
                end_transaction(cluster, identity, commit=False)
            except RejectedError as error:
                logger.warning("cannot abort %s: %s", identity.transactional_id, error)
        if attempt.name:
            intents.mark_aborted(attempt.write, attempt.name)  # before the first is fenced
        for partition in silent:
            _fence(cluster, transactional_id(options, attempt.write, attempt.batch, partition))
    except ClientError as error:
        logger.warning("transactions that were left open remain until they time out: %s", error)


def complete_recorded(cluster: Cluster, options: WriteOptions, write: str, batch: int) -> None:
    """Commit what an earlier run recorded but did not commit. Raises RejectedError if some of it
    has been aborted since.
    """
    intents = intents_of(cluster, options)
    recorded = intents.find(write, batch)
    if recorded is None or recorded.done:
        return
    logger.info("batch %d of %s was already committed; skipping the repeat", batch, write)
    outcomes = {one: _outcome(cluster, one) for one in recorded.identities}
    lost = [one for one, what in outcomes.items() if what in (Outcome.ABORTED, Outcome.UNKNOWN)]
    if lost:
        _resolve(cluster, options, write, batch, intents, outcomes, lost)
    for identity, what in outcomes.items():
        if what in (Outcome.OPEN, Outcome.COMMITTED):
            end_transaction(cluster, identity, commit=True)
    if lost and options.lost_transactions == "fail":
        raise _lost(write, batch, recorded, lost)
    intents.mark_done(write, batch, recorded)


def intents_of(cluster: Cluster, options: WriteOptions) -> Intents:
    return Intents(cluster, options.intent_topic, options.transactional_id_prefix)


def _outcome(cluster: Cluster, identity: ProducerIdentity) -> Outcome:
    """Never UNTOLD: if the broker does not know the outcome, it is asked to commit."""
    ended = outcome(cluster, identity)
    if ended is not Outcome.UNTOLD:
        return ended
    try:
        end_transaction(cluster, identity, commit=True)
        return Outcome.COMMITTED
    except RejectedError as error:
        if error.retriable:
            raise
        return Outcome.UNKNOWN


def _resolve(
    cluster: Cluster,
    options: WriteOptions,
    write: str,
    batch: int,
    intents: Intents,
    outcomes: Mapping[ProducerIdentity, Outcome],
    lost: Sequence[ProducerIdentity],
) -> None:
    """Return if the rest may be committed; otherwise raise RejectedError."""
    kinds = set(outcomes.values())
    nothing_visible = kinds <= {Outcome.OPEN, Outcome.ABORTED}
    if not nothing_visible and options.lost_transactions == "skip":
        logger.warning("batch %d of %s: skipping %d lost transactions", batch, write, len(lost))
        return
    if not nothing_visible and options.lost_transactions == "fail":
        return
    for identity, what in outcomes.items():
        if what is Outcome.OPEN:
            end_transaction(cluster, identity, commit=False)
    intents.withdraw(write)
    how = "nothing of the batch is visible" if nothing_visible else "part of it then appears twice"
    raise RejectedError(
        ErrorCode.INVALID_TXN_STATE,
        f"commit of batch {batch} of write {write}",
        f"{_names(lost)} had expired before they were committed, so the record of the batch was "
        f"withdrawn: start again to rewrite it ({how}). Restart before "
        "kafka.transaction.timeout.ms has passed",
    )


def _lost(
    write: str, batch: int, recorded: Recorded, lost: Sequence[ProducerIdentity]
) -> RejectedError:
    return RejectedError(
        ErrorCode.INVALID_TXN_STATE,
        f"commit of batch {batch} of write {write}",
        f"{len(lost)} of its {len(recorded.identities)} transactions had expired before they were "
        f"committed ({_names(lost)}); the others are committed. Start again with "
        "lostTransactions=rewrite to write the whole batch once more, including the committed "
        "part, or with lostTransactions=skip to continue without the lost rows",
    )


def _names(identities: Sequence[ProducerIdentity]) -> str:
    names = [str(one.transactional_id) for one in identities[:_NAMED_MAX]]
    more = len(identities) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _require_open(cluster: Cluster, identities: Sequence[ProducerIdentity]) -> None:
    """Before the record: after it, one that cannot be committed could not be mended either.

    Without the record all of them are aborted, and the next attempt rewrites the batch.
    """
    for identity in identities:
        if not is_open(cluster, identity):
            raise RejectedError(
                ErrorCode.INVALID_TXN_STATE,
                f"commit of transactional id {identity.transactional_id}",
                "the transaction is no longer open: it has expired (raise "
                "kafka.transaction.timeout.ms), or another attempt of the task has taken over "
                "its id (spark.speculation must be off). Nothing was committed",
            )


def _abort_left_over(
    cluster: Cluster, options: WriteOptions, write: str, used: Sequence[ProducerIdentity]
) -> None:
    """An attempt that died with its driver may have had more tasks than the committed one; their
    open transactions would block read_committed consumers until they time out.
    """
    ours = re.compile(re.escape(f"{options.transactional_id_prefix}.{write}.") + r"[01]\.\d+")
    names = {one.transactional_id for one in used}
    try:
        for name in open_transactional_ids(cluster):
            if ours.fullmatch(name) and name not in names:
                logger.info("aborting %s, which an earlier attempt left open", name)
                _fence(cluster, name)
    except ClientError as error:
        logger.warning("transactions that were left open remain until they time out: %s", error)


def _fence(cluster: Cluster, transactional_id: str) -> None:
    """The timeout is of a transaction that never begins; any broker allows it."""
    init_producer(cluster, transactional_id, timeout_ms=1_000)
