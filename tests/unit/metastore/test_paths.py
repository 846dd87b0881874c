"""The documents of the metadata store are the ones Apache Kafka 2.7 writes and reads."""

import json

import pytest

from kbroker import __version__
from kbroker.config.protocol_version import ProtocolVersion
from kbroker.metastore import paths

pytestmark = pytest.mark.unit


def test_paths_are_kafkas():
    assert paths.broker(3) == "/brokers/ids/3"
    assert paths.partition_state("t", 7) == "/brokers/topics/t/partitions/7/state"
    assert paths.topic_config("t") == "/config/topics/t"
    assert paths.broker_config("default") == "/config/brokers/<default>"
    assert paths.broker_config("0") == "/config/brokers/0"
    assert paths.delete_topic("t") == "/admin/delete_topics/t"


def test_persistent_paths_list_parents_first():
    seen = {"/"}
    for path in paths.PERSISTENT_PATHS:
        assert (path.rpartition("/")[0] or "/") in seen
        seen.add(path)


def test_broker_document_names_the_plain_endpoint_for_old_clients():
    endpoints = [["EXTERNAL", "e", 9093, "SASL_SSL"], ["INTERNAL", "i", 9092, "PLAINTEXT"]]
    supported = {"group.version": 1, "transaction.version": 2}
    document = json.loads(paths.encode_broker(endpoints, "r1", 1600000000000, features=supported))
    assert document.pop("kbroker") == {
        "version": __version__, "features": supported, "suspect": False, "failover": 0
    }  # fmt: skip
    assert document == {
        "version": 5, "host": "i", "port": 9092, "jmx_port": -1, "timestamp": "1600000000000",
        "endpoints": ["EXTERNAL://e:9093", "INTERNAL://i:9092"], "rack": "r1", "features": {},
        "listener_security_protocol_map": {"EXTERNAL": "SASL_SSL", "INTERNAL": "PLAINTEXT"},
    }  # fmt: skip
    suspect = paths.encode_broker(endpoints, None, 0, is_suspect=True)
    assert [paths.is_suspect_broker(one) for one in (suspect, b"{}", b'{"kbroker":1}')] == [
        True, False, False,
    ]  # fmt: skip
    assert "rack" not in json.loads(paths.encode_broker(endpoints, None, 0))
    older = json.loads(paths.encode_broker(endpoints, None, 0, ProtocolVersion.V2_6_IV0))
    assert older["version"] == 4
    assert "features" not in older


def test_topic_document_roundtrips_with_its_id():
    topic_id = bytes(range(16))
    data = paths.encode_topic(topic_id, {0: [0], 1: [0]})
    assert json.loads(data)["topic_id"] == "AAECAwQFBgcICQoLDA0ODw"
    assert paths.decode_topic(data) == (topic_id, {0: [0], 1: [0]})


def test_topic_document_of_kafka_2_7_has_no_id():
    data = b'{"version":2,"partitions":{"0":[1,2]},"adding_replicas":{},"removing_replicas":{}}'
    assert paths.decode_topic(data) == (None, {0: [1, 2]})


def test_partition_state_config_and_cluster_id_roundtrip():
    state = paths.encode_partition_state(1, 4, [1, 2], 9)
    assert paths.decode_partition_state(state) == (1, 4, [1, 2])
    assert paths.decode_config(paths.encode_config({"a": "b"})) == {"a": "b"}
    assert paths.decode_config(b"") == {}
    assert paths.decode_cluster_id(paths.encode_cluster_id("abc")) == "abc"


def test_producer_id_block_is_written_as_strings():
    data = paths.encode_producer_id_block(0, 1000, 1999)
    assert json.loads(data) == {
        "version": 1, "broker": 0, "block_start": "1000", "block_end": "1999"
    }  # fmt: skip
    assert paths.decode_producer_id_block(data) == 1999
    assert paths.decode_producer_id_block(b"") is None


def test_registration_is_read_as_it_was_written() -> None:
    endpoints = [["PLAINTEXT", "host", 9092, "PLAINTEXT"], ["OUT", "::1", 19092, "SASL_SSL"],
                 ["ANY", "", 9, "SSL"]]  # fmt: skip

    data = paths.encode_broker(endpoints, "r1", 0)

    assert paths.decode_broker(data) == (endpoints, "r1")
    assert json.loads(data)["endpoints"][1] == "OUT://[::1]:19092"


def test_registrations_of_older_kafkas_are_read() -> None:
    first = b'{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1"}'
    third = b'{"version":3,"host":"h","port":9092,"endpoints":["PLAINTEXT://h:9092"],"rack":"r"}'

    assert paths.decode_broker(first) == ([["PLAINTEXT", "h", 9092, "PLAINTEXT"]], None)
    assert paths.decode_broker(third) == ([["PLAINTEXT", "h", 9092, "PLAINTEXT"]], "r")
