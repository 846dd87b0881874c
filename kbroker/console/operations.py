"""All operations of the API."""

from __future__ import annotations

from kbroker.console.api import access, groups, messages, overview, topics, transactions

OPERATIONS = (
    *overview.OPERATIONS,
    *topics.OPERATIONS,
    *messages.OPERATIONS,
    *groups.OPERATIONS,
    *transactions.OPERATIONS,
    *access.OPERATIONS,
)
