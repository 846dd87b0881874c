"""Bytes written by hand from the protocol guide."""

import pytest

from kbroker.coordinator.records.offsets_topic import ConsumerGroupMemberMetadataValue
from kbroker.protocol import codec, header
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.produce import ProduceRequest

pytestmark = pytest.mark.wire

TOPIC_ID = bytes(range(16))


def check(message, version, *parts):
    """Compare both directions with the bytes of ``parts``, each a piece of hex and its meaning."""
    expected = bytes.fromhex("".join(part.partition("|")[0] for part in parts))

    assert codec.encode(message, version) == expected
    assert codec.decode_exact(type(message), version, expected) == message


def test_api_versions_request_0_is_empty():
    check(ApiVersionsRequest(), 0, "")


def test_api_versions_request_3_is_compact():
    message = ApiVersionsRequest(client_software_name="kcat", client_software_version="1.7")
    check(
        message,
        3,
        "05 6b636174 | length + 1, kcat",
        "04 312e37   | 1.7",
        "00          | no tagged fields",
    )


def api_versions_response():
    return ApiVersionsResponse(
        error_code=35,
        api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4)],
    )


def test_api_versions_response_0():
    check(
        api_versions_response(),
        0,
        "0023           | error 35",
        "00000001       | one key",
        "0012 0000 0004 | 18, 0 to 4",
    )


def test_api_versions_response_3():
    message = api_versions_response()
    message.throttle_time_ms = 5
    message.finalized_features_epoch = 7
    check(
        message,
        3,
        "0023                | error 35",
        "02                  | one key, plus one",
        "0012 0000 0004 00   | 18, 0 to 4, no tagged fields",
        "00000005            | throttle time",
        "01                  | one tagged field",
        "01 08               | tag 1, 8 bytes",
        "0000000000000007    | epoch",
    )


def test_metadata_request_tells_all_topics_from_none():
    check(MetadataRequest(topics=[]), 0, "00000000")
    check(MetadataRequest(topics=None), 1, "ffffffff")
    check(MetadataRequest(topics=[]), 1, "00000000")


def test_metadata_request_12_by_id():
    topic = MetadataRequest.MetadataRequestTopic(topic_id=TOPIC_ID, name=None)
    check(
        MetadataRequest(topics=[topic], allow_auto_topic_creation=False),
        12,
        "02                               | one topic, plus one",
        "000102030405060708090a0b0c0d0e0f | id",
        "00 00                            | null name, no tagged fields",
        "00 00                            | no creation, no operations",
        "00                               | no tagged fields",
    )


def metadata_response(**broker):
    return MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9092, **broker)],
        topics=[
            MetadataResponse.MetadataResponseTopic(
                name="t",
                partitions=[
                    MetadataResponse.MetadataResponsePartition(
                        partition_index=2, leader_id=1, replica_nodes=[1, 3], isr_nodes=[1]
                    )
                ],
            )
        ],
    )


def test_metadata_response_0():
    check(
        metadata_response(),
        0,
        "00000001                     | one broker",
        "00000001 0001 68 00002384    | 1, h, 9092",
        "00000001                     | one topic",
        "0000 0001 74                 | no error, t",
        "00000001                     | one partition",
        "0000 00000002 00000001       | no error, 2, leader 1",
        "00000002 00000001 00000003   | replicas 1 and 3",
        "00000001 00000001            | in sync 1",
    )


def test_metadata_response_12():
    message = metadata_response(rack="r")
    message.cluster_id = "c"
    message.controller_id = 1
    message.topics[0].topic_id = TOPIC_ID
    message.topics[0].partitions[0].leader_epoch = 6
    message.topics[0].partitions[0].offline_replicas = [3]
    check(
        message,
        12,
        "00000000                              | throttle time",
        "02 00000001 02 68 00002384 02 72 00   | one broker: 1, h, 9092, rack r",
        "02 63 00000001                        | cluster c, controller 1",
        "02 0000 02 74                         | one topic: no error, t",
        "000102030405060708090a0b0c0d0e0f 00   | id, not internal",
        "02 0000 00000002 00000001 00000006    | one partition: 2, leader 1, epoch 6",
        "03 00000001 00000003                  | replicas",
        "02 00000001                           | in sync",
        "02 00000003 00                        | offline, no tagged fields",
        "80000000 00                           | operations not asked for, no tagged fields",
        "00                                    | no tagged fields",
    )


def test_produce_request_9_with_its_header():
    head = header.encode_request_header(0, 9, 17, "p")
    body = codec.encode(
        ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name="t",
                    partition_data=[ProduceRequest.PartitionProduceData(index=3, records=b"batch")],
                )
            ],
        ),
        9,
    )

    assert head == bytes.fromhex("0000 0009 00000011 0001 70 00")
    assert body == bytes.fromhex(
        "00 ffff 000003e8 02 02 74 02 00000003 06 6261746368 00 00 00".replace(" ", "")
    )
    decoded = header.decode_request_header(head + body)
    assert decoded == header.DecodedHeader(0, 9, 17, "p", len(head))


def test_fetch_response_12_hints_at_the_leader_in_a_tagged_field():
    leader = FetchResponse.LeaderIdAndEpoch(leader_id=4, leader_epoch=5)
    partition = FetchResponse.PartitionData(
        error_code=6, current_leader=leader, aborted_transactions=None, records=b""
    )
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
    check(
        FetchResponse(responses=[topic]),
        12,
        "00000000 0000 00000000              | throttle time, no error, no session",
        "02 02 74                            | one topic",
        "02 00000000 0006                    | one partition: 0, error 6",
        "0000000000000000                    | high watermark",
        "ffffffffffffffff ffffffffffffffff   | last stable offset, log start",
        "00 ffffffff 01                      | no transactions, no other replica, no records",
        "01 01 09 00000004 00000005 00       | tag 1 of 9 bytes: leader 4, epoch 5",
        "00 00                               | no tagged fields",
    )


MEMBER = (
    "00 00                               | no instance, no rack",
    "02 63 03 2f68                       | client c on /h",
    "02 02 74 00                         | topic t, no regular expression",
    "000003e8 00                         | 1 s to rebalance, no assignor",
)


def member(classic=None):
    return ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=["t"],
        subscribed_topic_regex=None,
        rebalance_timeout_ms=1000,
        server_assignor=None,
        classic_member_metadata=classic,
    )


def test_tagged_null_struct_is_written():
    """As Kafka 3.9 and 4.4 write a member of the consumer protocol. Without the field they would
    take it for one of the classic protocol without protocols.
    """
    check(member(), 0, *MEMBER, "01 00 01 00 | tag 0 of 1 byte: null")


def test_tagged_struct_that_may_be_null_is_written_behind_a_byte():
    cls = ConsumerGroupMemberMetadataValue
    protocol = cls.ClassicProtocol(name="range", metadata=b"\x01\x02")
    classic = cls.ClassicMemberMetadata(session_timeout_ms=45_000, supported_protocols=[protocol])
    check(
        member(classic),
        0,
        *MEMBER,
        "01 00 11 01                         | tag 0 of 17 bytes: not null",
        "0000afc8                            | session timeout",
        "02 06 72616e6765 03 0102 00         | one protocol: range",
        "00                                  | no tagged fields",
    )


def test_tagged_struct_that_may_be_null_is_null_when_absent():
    """As kbroker wrote it before."""
    head = bytes.fromhex("".join(part.partition("|")[0] for part in MEMBER))
    assert codec.decode_exact(ConsumerGroupMemberMetadataValue, 0, head + b"\0") == member()


def test_records_are_decoded_without_a_copy():
    partition = ProduceRequest.PartitionProduceData(index=0, records=b"0123456789")
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    encoded = bytearray(codec.encode(ProduceRequest(topic_data=[topic]), 3))

    decoded = codec.decode_exact(ProduceRequest, 3, memoryview(encoded))
    encoded[-10:] = b"abcdefghij"

    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records == b"abcdefghij"


def test_header_versions_follow_the_api():
    assert header.request_header_version(7, 0) == 0
    assert header.request_header_version(7, 1) == 1
    assert header.request_header_version(18, 2) == 1
    assert header.request_header_version(18, 3) == 2
    assert header.request_header_version(18, 99) == 2
    assert header.request_header_version(17, 1) == 1
    assert header.response_header_version(18, 3) == 0
    assert header.response_header_version(3, 8) == 0
    assert header.response_header_version(3, 9) == 1


def test_response_header_carries_tags_in_flexible_versions_only():
    assert header.encode_response_header(5, 3, 8) == bytes.fromhex("00000005")
    assert header.encode_response_header(5, 3, 9) == bytes.fromhex("00000005 00")
    assert header.encode_response_header(5, 18, 4) == bytes.fromhex("00000005")
    assert header.decode_response_header(bytes.fromhex("00000005 00"), 3, 9) == (5, 5)


def test_request_header_without_client_id():
    encoded = header.encode_request_header(3, 1, 7, None)

    assert encoded == bytes.fromhex("0003 0001 00000007 ffff")
    assert header.decode_request_header(encoded).client_id is None
    assert header.encode_request_header(7, 0, 1, "x") == bytes.fromhex("0007 0000 00000001")
    assert header.decode_request_header(bytes.fromhex("0007 0000 00000001")).end_offset == 8
