"""Kafka's rules for topic names. A log's directory is named after its topic."""

from __future__ import annotations

NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
NAME_LENGTH_MAX = 249
# BOUND: partitions of one topic. A topic is one node of the metadata store and one message to every
# process; beyond this, both become unwieldy.
PARTITIONS_MAX = 100_000


def name_fault(name: str) -> str | None:
    """What is wrong with a name, as the end of an error message; None if Kafka accepts it."""
    if not name:
        return "is empty"
    if name in (".", ".."):
        return "may not be '.' or '..'"
    if len(name) > NAME_LENGTH_MAX:
        return f"has {len(name)} characters"
    if not NAME_CHARS.issuperset(name):
        return "has an illegal character"
    return None
