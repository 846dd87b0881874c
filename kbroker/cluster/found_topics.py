"""Settings of topics that were found on disk and whose own settings are lost.

A default must not delete what somebody meant to keep. Retention by time would empty most topics a
week after they were found, and delete records that coordinators still need from the internal ones.
"""

from __future__ import annotations

from kbroker.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

_KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_COMPACT = {"cleanup.policy": "compact"}
_INTERNAL = {**_COMPACT, "segment.bytes": "104857600"}
_OF_INTERNAL_TOPICS = {
    OFFSETS_TOPIC: {**_INTERNAL, "compression.type": "producer"},
    TRANSACTIONS_TOPIC: {
        **_INTERNAL,
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "false",
    },
}


def settings_when_found(name: str, was_compacted: bool) -> dict[str, str]:
    """was_compacted: a cleaner worked on one of the topic's logs."""
    internal = _OF_INTERNAL_TOPICS.get(name)
    if internal is not None:
        return dict(internal)
    return {**_KEEP_ALL, **(_COMPACT if was_compacted else {})}
