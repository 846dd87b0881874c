"""Finds which producer ids were assigned, when no metadata has them.

If a broker gave out such an id again, it would take the records of the new owner for duplicates of
the old one's, and drop them.
"""

from __future__ import annotations

import os

from kbroker.adopt.batch_files import batches_of
from kbroker.coordinator.records.codec import UnknownRecordError
from kbroker.coordinator.records.transaction_topic import RECORDS, TransactionLogValue
from kbroker.protocol.codec import DecodeError
from kbroker.storage.formats import LOG_SUFFIX

# Brokers allocate ids in blocks of this size.
BLOCK = 1000
# BOUND: producer ids that may be allocated but unused, in the blocks of all brokers of a cluster.
# There are 2**63 ids.
MARGIN = 1_000_000


def first_free(known: list[int]) -> int:
    """An id above all that may be in use, at the start of a block. known: ids found elsewhere."""
    newest = max(known, default=-1)
    return (newest // BLOCK + 1) * BLOCK + MARGIN


def in_transaction_log(path: str) -> list[int]:
    """The largest id in a partition of ``__transaction_state``; None for an empty one.

    What is cut short at the end of a log was not acknowledged. Raises Refusal, OSError.
    """
    newest = -1
    for name in sorted(os.listdir(path)):
        if not name.endswith(LOG_SUFFIX):
            continue
        file = os.path.join(path, name)
        for batch in batches_of(file, partial_tail=True):
            for record in () if batch.is_control else batch:
                newest = max(newest, _producer_id(record.key, record.value))
    return [newest] if newest >= 0 else []


def _producer_id(key: bytes | None, value: bytes | None) -> int:
    try:
        decoded = RECORDS.decode(key, value)[1]
    except (DecodeError, UnknownRecordError):
        return -1  # the coordinator passes over it, too
    if not isinstance(decoded, TransactionLogValue):
        return -1
    ids = decoded.producer_id, decoded.previous_producer_id, decoded.next_producer_id
    return max(ids)
