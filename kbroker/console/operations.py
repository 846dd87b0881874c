"""All operations of the API."""

from __future__ import annotations

from kbroker.console.api import messages, overview, topics

OPERATIONS = (*overview.OPERATIONS, *topics.OPERATIONS, *messages.OPERATIONS)
