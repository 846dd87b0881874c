"""All operations of the API."""

from __future__ import annotations

from kbroker.console.api import (
    access,
    groups,
    health,
    messages,
    overview,
    quotas,
    reassignments,
    replay,
    session,
    topics,
    transactions,
)

OPERATIONS = (
    *session.OPERATIONS,
    *overview.OPERATIONS,
    *health.OPERATIONS,
    *topics.OPERATIONS,
    *messages.OPERATIONS,
    *replay.OPERATIONS,
    *groups.OPERATIONS,
    *transactions.OPERATIONS,
    *reassignments.OPERATIONS,
    *quotas.OPERATIONS,
    *access.OPERATIONS,
)
