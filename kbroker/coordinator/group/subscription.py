"""What the coordinator reads of a consumer's subscription in the classic protocol."""

from __future__ import annotations

import struct

from kbroker.protocol import codec
from kbroker.protocol.codec import DecodeError
from kbroker.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

CONSUMER_PROTOCOL_TYPE = "consumer"
_VERSION = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a member's metadata; None if it is not what consumers send."""
    if len(metadata) < _VERSION.size or _VERSION.unpack_from(metadata)[0] < 0:
        return None
    try:
        # Every version starts with the fields of version 0, so newer ones are readable too.
        found, _ = codec.decode(ConsumerProtocolSubscription, 0, metadata, _VERSION.size)
    except DecodeError:
        return None
    return frozenset(found.topics)
