"""The versions of requests between brokers, by ``inter.broker.protocol.version``.

Brokers do not send each other ApiVersions. They accept all versions that the codec has, which are
more than they send.
"""

from __future__ import annotations

from kbroker.config.protocol_version import ProtocolVersion as V
from kbroker.protocol.api import ApiKey

# By API, the newest first: the first protocol version and the version that it sends.
SENT: dict[ApiKey, tuple[tuple[V, int], ...]] = {
    ApiKey.FETCH: (
        (V.V2_7_IV1, 12),
        (V.V2_3_IV1, 11),
        (V.V2_1_IV2, 10),
        (V.V2_0_IV1, 8),
        (V.V1_1_IV0, 7),
    ),
    ApiKey.LIST_OFFSETS: (
        (V.V2_2_IV1, 5),
        (V.V2_1_IV1, 4),
        (V.V2_0_IV1, 3),
        (V.V1_1_IV0, 2),
    ),
    ApiKey.LEADER_AND_ISR: (
        (V.V2_4_IV1, 4),
        (V.V2_4_IV0, 3),
        (V.V2_2_IV0, 2),
        (V.V1_1_IV0, 1),
    ),
    ApiKey.STOP_REPLICA: (
        (V.V2_6_IV0, 3),
        (V.V2_4_IV1, 2),
        (V.V2_2_IV0, 1),
        (V.V1_1_IV0, 0),
    ),
    ApiKey.UPDATE_METADATA: ((V.V2_4_IV1, 6), (V.V2_2_IV0, 5), (V.V1_1_IV0, 4)),
    ApiKey.CONTROLLED_SHUTDOWN: ((V.V2_4_IV1, 3), (V.V2_2_IV0, 2), (V.V1_1_IV0, 1)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        (V.V2_3_IV1, 3),
        (V.V2_1_IV1, 2),
        (V.V2_0_IV0, 1),
        (V.V1_1_IV0, 0),
    ),
    ApiKey.WRITE_TXN_MARKERS: ((V.V1_1_IV0, 0),),
    # Before that, a leader writes its ISR into the store itself.
    ApiKey.ALTER_PARTITION: ((V.V2_7_IV2, 0),),
}


def sent_version(api: ApiKey, protocol: V) -> int | None:
    """The version in which brokers send this request to each other; None if they do not."""
    return next((version for first, version in SENT[api] if protocol >= first), None)
