"""The classes generated from definitions, and what the encoder rejects."""

import copy
import pickle
import subprocess
import sys

import pytest

from kbroker.protocol import api, codec
from kbroker.protocol.codec import DecodeError, EncodeError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse

pytestmark = pytest.mark.unit


def test_new_message_has_the_defaults_of_its_definition():
    request = FetchRequest(max_wait_ms=5)

    assert (request.max_wait_ms, request.replica_id, request.max_bytes) == (5, -1, 0x7FFFFFFF)
    assert (request.topics, request.rack_id, request.cluster_id) == ([], "", None)


def test_mutable_defaults_are_not_shared_between_messages():
    first, second = FetchRequest(), FetchRequest()
    first.topics.append(1)

    assert second.topics == []
    make = StreamsGroupHeartbeatResponse.EndpointToPartitions
    assert make().user_endpoint == StreamsGroupHeartbeatResponse.Endpoint()
    assert make().user_endpoint is not make().user_endpoint


def test_unknown_names_are_rejected():
    with pytest.raises(TypeError, match="topic"):
        MetadataRequest(topic="x")
    with pytest.raises(AttributeError, match="topic"):
        MetadataRequest().topic = "x"
    with pytest.raises(AttributeError, match="no attribute 'topic'"):
        print(MetadataRequest().topic)
    with pytest.raises(AttributeError, match="no struct Topic"):
        print(MetadataRequest.Topic)


def test_messages_are_compared_by_value_and_show_it():
    topic = MetadataRequest.MetadataRequestTopic

    assert MetadataRequest(topics=[topic(name="a")]) == MetadataRequest(topics=[topic(name="a")])
    assert MetadataRequest(topics=[topic(name="a")]) != MetadataRequest(topics=[topic(name="b")])
    assert MetadataRequest(topics=[]) != MetadataResponse()
    assert "MetadataRequestTopic(topic_id=" in repr(MetadataRequest(topics=[topic(name="a")]))
    assert "name='a'" in repr(topic(name="a"))


def test_messages_can_be_copied_and_pickled():
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="a")])

    assert copy.deepcopy(request) == request
    assert pickle.loads(pickle.dumps(request)) == request


@pytest.mark.parametrize(
    ("message", "version", "reason"),
    [
        (MetadataRequest(topics=None), 0, "MetadataRequest.topics is null"),
        (MetadataRequest(topics=5), 1, "topics: 5 is no array"),
        (MetadataRequest(topics=["x"]), 1, "topics: 'x' is no MetadataRequestTopic"),
        (
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=None)]),
            9,
            "MetadataRequest.topics.name is null",
        ),
        (FetchRequest(max_wait_ms=1 << 31), 4, "max_wait_ms: 2147483648 is no int32"),
        (FetchRequest(rack_id="x" * 32768), 11, "rack_id.*32768"),
        (FetchRequest(rack_id="x" * 32768), 12, "rack_id.*32768"),
        (FetchRequest(rack_id="\ud800"), 12, "rack_id.*no string"),
        (ProduceRequest(acks="all"), 3, "acks: 'all' is no int16"),
        (
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(topic_id=b"short")]),
            12,
            "topic_id: a uuid is 16 bytes",
        ),
    ],
)
def test_value_that_does_not_fit_is_rejected_and_named(message, version, reason):
    with pytest.raises(EncodeError, match=reason):
        codec.encode(message, version)


def test_value_a_version_cannot_carry_is_rejected_unless_ignorable():
    assert codec.encode(FetchRequest(max_bytes=5), 2) == codec.encode(FetchRequest(), 2)
    with pytest.raises(EncodeError, match=r"forgotten_topics_data is set, but version 6"):
        codec.encode(FetchRequest(forgotten_topics_data=[FetchRequest.ForgottenTopic()]), 6)
    with pytest.raises(EncodeError, match=r"allow_auto_topic_creation is set"):
        codec.encode(MetadataRequest(topics=[], allow_auto_topic_creation=False), 3)


def test_tagged_struct_of_defaults_is_not_written():
    def encoded(leader):
        partition = FetchResponse.PartitionData(current_leader=leader)
        topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
        return codec.encode(FetchResponse(responses=[topic]), 12)

    assert encoded(FetchResponse.LeaderIdAndEpoch()) == encoded(None)
    assert encoded(FetchResponse.LeaderIdAndEpoch(leader_id=1)) != encoded(None)


def test_unknown_version_is_rejected_as_a_mistake_of_the_caller():
    for version in (-1, 14):
        with pytest.raises(ValueError, match="versions 0 to 13"):
            codec.encode(MetadataRequest(), version)
        with pytest.raises(ValueError, match="versions 0 to 13") as caught:
            codec.decode(MetadataRequest, version, b"")
        assert not isinstance(caught.value, DecodeError)


def test_encode_into_appends():
    out = bytearray(b"frame")

    codec.encode_into(MetadataRequest(topics=None), 1, out)

    assert out == b"frame\xff\xff\xff\xff"


def test_api_lookups_agree_with_the_classes():
    for key in api.ApiKey:
        for cls in (api.request_class(key), api.response_class(key)):
            assert (cls.API_KEY, cls.VERSIONS) == (key, key.versions)
            assert cls.FIRST_FLEXIBLE == key.first_flexible
    assert api.request_class(3) is MetadataRequest
    assert api.response_class(3) is MetadataResponse
    assert api.find(3) is api.ApiKey.METADATA
    assert api.find(999) is None
    with pytest.raises(KeyError):
        api.request_class(999)


def test_importing_the_codec_imports_no_message():
    """A start pays only for the messages its clients use."""
    source = (
        "import sys, kbroker.protocol.codec, kbroker.protocol.header\n"
        "loaded = [n for n in sys.modules if n.startswith('kbroker.protocol.messages')]\n"
        "heavy = {'asyncio', 'numpy', 'dataclasses', 'inspect'} & set(sys.modules)\n"
        "sys.exit(f'{loaded} {heavy}' if loaded or heavy else 0)"
    )

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
