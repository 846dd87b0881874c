"""The versions of requests between brokers, compared with Kafka 2.7."""

from __future__ import annotations

import pytest

from kbroker.config.protocol_version import ProtocolVersion as V
from kbroker.peers.versions import SENT, sent_version
from kbroker.protocol.api import ApiKey, request_class

pytestmark = pytest.mark.unit

# The versions sent by Kafka 2.7, from ControllerChannelManager, ReplicaFetcherThread, KafkaServer
# and AlterIsrManager: LeaderAndIsr, UpdateMetadata, StopReplica, ControlledShutdown, Fetch,
# OffsetForLeaderEpoch, ListOffsets, WriteTxnMarkers, AlterIsr.
APIS = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.UPDATE_METADATA,
    ApiKey.STOP_REPLICA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.FETCH,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.ALTER_PARTITION,
)
KAFKAS = {
    V.V1_1_IV0: (1, 4, 0, 1, 7, 0, 2, 0, None),
    V.V2_0_IV0: (1, 4, 0, 1, 7, 1, 2, 0, None),
    V.V2_0_IV1: (1, 4, 0, 1, 8, 1, 3, 0, None),
    V.V2_1_IV0: (1, 4, 0, 1, 8, 1, 3, 0, None),
    V.V2_1_IV1: (1, 4, 0, 1, 8, 2, 4, 0, None),
    V.V2_1_IV2: (1, 4, 0, 1, 10, 2, 4, 0, None),
    V.V2_2_IV0: (2, 5, 1, 2, 10, 2, 4, 0, None),
    V.V2_2_IV1: (2, 5, 1, 2, 10, 2, 5, 0, None),
    V.V2_3_IV0: (2, 5, 1, 2, 10, 2, 5, 0, None),
    V.V2_3_IV1: (2, 5, 1, 2, 11, 3, 5, 0, None),
    V.V2_4_IV0: (3, 5, 1, 2, 11, 3, 5, 0, None),
    V.V2_4_IV1: (4, 6, 2, 3, 11, 3, 5, 0, None),
    V.V2_5_IV0: (4, 6, 2, 3, 11, 3, 5, 0, None),
    V.V2_6_IV0: (4, 6, 3, 3, 11, 3, 5, 0, None),
    V.V2_7_IV0: (4, 6, 3, 3, 11, 3, 5, 0, None),
    V.V2_7_IV1: (4, 6, 3, 3, 12, 3, 5, 0, None),
    V.V2_7_IV2: (4, 6, 3, 3, 12, 3, 5, 0, 0),
}


@pytest.mark.parametrize("protocol", V)
def test_requests_are_sent_in_the_versions_of_kafka(protocol):
    assert tuple(sent_version(api, protocol) for api in APIS) == KAFKAS[protocol]


def test_every_api_of_the_table_is_compared():
    assert set(SENT) == set(APIS)


def test_codec_has_all_versions_that_are_sent():
    for api, rows in SENT.items():
        first, last = request_class(api).VERSIONS
        assert all(first <= version <= last for _, version in rows)
