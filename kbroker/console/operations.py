"""All operations of the API."""

from __future__ import annotations

from kbroker.console.api import (
    access,
    group_offsets,
    groups,
    health,
    log_dirs,
    messages,
    overview,
    quotas,
    reassignments,
    rebalancing,
    records,
    replay,
    session,
    topics,
    transactions,
)

OPERATIONS = (
    *session.OPERATIONS,
    *overview.OPERATIONS,
    *log_dirs.OPERATIONS,
    *health.OPERATIONS,
    *topics.OPERATIONS,
    *records.OPERATIONS,
    *messages.OPERATIONS,
    *replay.OPERATIONS,
    *groups.OPERATIONS,
    *group_offsets.OPERATIONS,
    *transactions.OPERATIONS,
    *reassignments.OPERATIONS,
    *rebalancing.OPERATIONS,
    *quotas.OPERATIONS,
    *access.OPERATIONS,
)
