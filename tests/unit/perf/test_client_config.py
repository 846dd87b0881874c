"""Kafka's client configs translated for librdkafka."""

import pytest

from perf.client_config import for_librdkafka, parse_pairs, read_properties

pytestmark = pytest.mark.unit


def test_read_properties_skips_comments_and_keeps_equals_signs(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("# a comment\n! another\n\n acks = all \nsasl.jaas.config=a=b\n")

    assert read_properties(file) == {"acks": "all", "sasl.jaas.config": "a=b"}


def test_parse_pairs_keeps_equals_signs_in_the_value():
    assert parse_pairs(["a=1", "b=c=d", "e="]) == {"a": "1", "b": "c=d", "e": ""}


@pytest.mark.parametrize("bad", ["acks", "=1"])
def test_parse_pairs_without_key_or_value_is_refused(bad):
    with pytest.raises(ValueError, match="not key=value"):
        parse_pairs([bad])


def test_for_librdkafka_renames_converts_and_drops():
    java = {
        "acks": "all",
        "buffer.memory": "33554432",
        "max.request.size": "2000000",
        "max.poll.records": "500",
        "key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    }

    assert for_librdkafka(java) == {
        "acks": "all",
        "queue.buffering.max.kbytes": "32768",
        "message.max.bytes": "2000000",
    }
