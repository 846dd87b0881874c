"""The options of the data source, row by row: defaults, precedence, errors and their texts."""

import logging

import pytest

from kbroker.spark.options import option_values as v
from kbroker.spark.options import options as o
from kbroker.spark.options.kafka_settings import JAVA_CLIENT, KNOWN_SETTINGS, fetch_bytes_max
from kbroker.spark.options.option_table import OPTIONS

pytestmark = pytest.mark.unit

SERVERS = {"kafka.bootstrap.servers": "a:1,b:2"}
READ = {**SERVERS, "subscribe": "t"}


def read(streaming=False, **given):
    return o.parse_read({**READ, **given}, streaming=streaming)


def refusal(streaming=False, *, base=READ, **given):
    with pytest.raises(v.OptionError) as caught:
        o.parse_read({**base, **given}, streaming=streaming)
    return str(caught.value)


def test_batch_defaults_are_the_connectors():
    got = read()

    assert (got.bootstrap, got.subscription) == ("a:1,b:2", v.TopicSubscription(topics=("t",)))
    assert (got.starting.kind, got.ending.kind) == (v.LimitKind.EARLIEST, v.LimitKind.LATEST)
    assert got.fail_on_data_loss and not got.include_headers and not got.read_committed
    assert (got.min_partitions, got.max_records_per_partition) == (None, None)
    assert (got.poll_timeout_ms, got.offset_attempts, got.offset_retry_ms) == (120_000, 3, 1000)
    assert (got.group_id, got.kafka) == (None, {})


def test_stream_defaults_are_the_connectors():
    got = read(streaming=True)

    assert got.starting.kind is v.LimitKind.LATEST
    assert got.max_trigger_delay_ms == 900_000
    limits = (got.max_offsets_per_trigger, got.min_offsets_per_trigger, got.max_bytes_per_trigger)
    assert limits == (None, None, None)


def test_write_defaults_are_the_connectors():
    got = o.parse_write(SERVERS)

    assert (got.topic, got.exactly_once, got.keep_timestamps) == (None, False, False)


def test_names_are_case_insensitive():
    got = o.parse_read(
        {
            "KAFKA.Bootstrap.Servers": "a:1",
            "SUBSCRIBE": "t",
            "startingoffsets": "EARLIEST",
            "INCLUDEHEADERS": "True",
            "kafka.Isolation.Level": "read_committed",
        },
        streaming=True,
    )

    assert got.bootstrap == "a:1"
    assert got.starting.kind is v.LimitKind.EARLIEST
    assert got.include_headers and got.read_committed


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": " a, b ,,a"}, v.TopicSubscription(topics=("a", "b"))),
        ({"subscribePattern": " a.* "}, v.TopicSubscription(pattern="a.*")),
        ({"assign": '{"a":[1,0]}'}, v.TopicSubscription(partitions=(("a", 1), ("a", 0)))),
    ],
)
def test_subscription_takes_one_of_three(given, expected):
    assert o.parse_read({**SERVERS, **given}, streaming=False).subscription == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "only one of"),
        ({"subscribe": "a", "subscribePattern": "b"}, "only one of"),
        ({"subscribe": " , "}, "names separated by commas"),
        ({"subscribePattern": "  "}, "a regular expression"),
        ({"subscribePattern": "a("}, "not a Python regular expression"),
        # Java's patterns, which would silently match other names.
        ({"subscribePattern": "a-[0-9&&[^3]]"}, "not a Python regular expression"),
        ({"subscribePattern": "a-[[0-3]7]"}, "not a Python regular expression"),
        ({"assign": "a"}, '{"topicA":[0,1]'),
        ({"assign": "{}"}, '{"topicA":[0,1]'),
        ({"assign": '{"a":["x"]}'}, '{"topicA":[0,1]'),
        ({"assign": '{"a":[-1]}'}, '{"topicA":[0,1]'),
        ({"assign": "[1]"}, '{"topicA":[0,1]'),
    ],
)
def test_subscription_refusals_say_what_to_write(given, says):
    assert says in refusal(base=SERVERS, **given)


@pytest.mark.parametrize("streaming", [False, True])
def test_timestamp_goes_before_timestamps_before_offsets(streaming):
    offsets = {"startingOffsets": '{"t":{"0":5}}'}
    by_timestamp = {"startingOffsetsByTimestamp": '{"t":{"0":99}}'}

    assert read(streaming, **offsets).starting.values == {("t", 0): 5}
    got = read(streaming, **offsets, **by_timestamp).starting
    assert (got.kind, got.values) == (v.LimitKind.TIMESTAMPS, {("t", 0): 99})
    got = read(streaming, **offsets, **by_timestamp, startingTimestamp="77").starting
    assert (got.kind, got.timestamp) == (v.LimitKind.TIMESTAMP, 77)


def test_ending_timestamp_goes_before_timestamps_before_offsets():
    offsets = {"endingOffsets": '{"t":{"0":5}}'}
    by_timestamp = {"endingOffsetsByTimestamp": '{"t":{"0":99}}'}

    assert read(**offsets).ending.values == {("t", 0): 5}
    assert read(**offsets, **by_timestamp).ending.kind is v.LimitKind.TIMESTAMPS
    got = read(**offsets, **by_timestamp, endingTimestamp="77").ending
    assert (got.kind, got.latest_without_match) == (v.LimitKind.TIMESTAMP, True)


@pytest.mark.parametrize(
    ("strategy", "latest"), [(None, False), ("ERROR", False), ("latest", True)]
)
def test_strategy_says_what_a_time_without_record_means(strategy, latest):
    given = {"startingTimestamp": "5"}
    if strategy:
        given["startingOffsetsByTimestampStrategy"] = strategy

    assert read(**given).starting.latest_without_match is latest


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": "latest"}, "write earliest or"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "write -2"),
        ({"startingOffsets": "soon"}, "earliest, latest or JSON such as"),
        ({"startingOffsets": '{"t":5}'}, "JSON such as"),
        ({"startingOffsets": '{"t":{"0":1.5}}'}, "JSON such as"),
        ({"startingOffsets": "committed"}, "set groupId"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "startingOffsets of t-0 is -3: write an offset"),
        ({"endingOffsets": '{"t":{"0":-9}}'}, "endingOffsets of t-0 is -9: write an offset or -1"),
        ({"kafkaConsumer.pollTimeoutMs": "-1"}, "write 1 or more"),
        ({"fetchOffset.numRetries": "-1"}, "write 0 or more"),
        ({"fetchOffset.retryIntervalMs": "-1"}, "write 0 or more"),
        ({"endingOffsets": "earliest"}, "write latest or JSON"),
        ({"startingOffsets": " "}, "earliest, latest or JSON such as"),
        ({"endingOffsets": ""}, "latest or JSON such as"),
        ({"startingOffsetsByTimestampStrategy": ""}, "write error or latest"),
        ({"maxTriggerDelay": ""}, "write a duration"),
        ({"split": ""}, "write size or partition"),
        ({"groupId": ""}, "groupId is blank"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "write -1"),
        ({"startingTimestamp": "yesterday"}, "write a whole number"),
        ({"endingTimestamp": ""}, "write a whole number"),
        ({"endingTimestamp": "99999999999999999999"}, "at most 9223372036854775807"),
        ({"startingOffsets": '{"t":{"0":99999999999999999999}}'}, "JSON such as"),
        ({"startingOffsetsByTimestamp": "[]"}, '"0":1700000000000'),
        ({"startingOffsetsByTimestampStrategy": "first"}, "write error or latest"),
        ({"minPartitions": "0"}, "write 1 or more"),
        ({"minPartitions": "many"}, "write a whole number"),
        ({"maxRecordsPerPartition": "-1"}, "write 1 or more"),
        ({"failOnDataLoss": "no"}, "write true or false"),
        ({"includeHeaders": "1"}, "write true or false"),
        ({"kafka.isolation.level": "serializable"}, "write read_committed or read_uncommitted"),
        ({"split": "topic"}, "write size or partition"),
        ({"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"1":1}}'}, "t-0, t-1"),
        (
            {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":1}}'},
            "not after the end",
        ),
    ],
)
def test_batch_refusals_say_what_to_write(given, says):
    assert says in refusal(**given)


def test_start_before_a_symbolic_end_is_no_contradiction():
    got = read(startingOffsets='{"t":{"0":9}}', endingOffsets='{"t":{"0":-1}}')

    assert got.ending.values == {("t", 0): v.LATEST}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endingOffsets": "latest"}, "availableNow"),
        ({"endingOffsetsByTimestamp": "{}"}, "availableNow"),
        ({"endingTimestamp": "5"}, "availableNow"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "smaller minimum"),
        ({"maxTriggerDelay": "soon"}, "30s, 15m or 500ms"),
        ({"maxOffsetsPerTrigger": "0"}, "write 1 or more"),
        ({"maxOffsetsPerTrigger": "-5"}, "write 1 or more"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "write an offset, -1 (latest) or -2 (earliest)"),
        ({"maxBytesPerTrigger": "0"}, "write 1 or more"),
    ],
)
def test_stream_refusals_say_what_to_write(given, says):
    assert says in refusal(streaming=True, **given)


def test_stream_may_start_at_latest_of_each_partition():
    got = read(streaming=True, startingOffsets='{"t":{"0":-1,"1":-2,"2":7}}')

    assert got.starting.values == {("t", 0): v.LATEST, ("t", 1): v.EARLIEST, ("t", 2): 7}
    assert got.starting.moves
    assert not read(streaming=True, startingOffsets='{"t":{"0":7}}').starting.moves


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("auto.offset.reset", "startingOffsets"),
        ("key.deserializer", "cast them in the query"),
        ("value.deserializer", "cast them in the query"),
        ("enable.auto.commit", "groupId"),
        ("interceptor.classes", "in the query"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_settings_that_readers_must_not_have_are_refused(setting, says, streaming):
    assert says in refusal(streaming, **{f"kafka.{setting}": "x"})


@pytest.mark.parametrize("setting", ["key.serializer", "value.serializer"])
def test_settings_that_writers_must_not_have_are_refused(setting):
    with pytest.raises(v.OptionError, match="string or binary"):
        o.parse_write({**SERVERS, f"kafka.{setting}": "x"})


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({}, 1000),
        ({"max.partition.fetch.bytes": "500"}, 500),
        ({"max.partition.fetch.bytes": "5000"}, 1000),
        ({"max.partition.fetch.bytes": "500", "fetch.max.bytes": "0"}, 1),
    ],
)
def test_fetches_ask_for_no_more_than_settings_say(given, most):
    assert fetch_bytes_max(given, 1000) == most


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("partitioner.class", "the key decides where a row goes"),
        ("partitioner.ignore.keys", "the key decides where a row goes"),
        ("interceptor.classes", "transform the rows"),
        ("retries", "set kafka.delivery.timeout.ms"),
        ("queue.buffering.max.ms", "write kafka.linger.ms"),
        ("send.buffer.bytes", "it would have no effect"),
    ],
)
def test_settings_of_writers_that_would_be_ignored_are_refused(setting, says):
    """They would be ignored, which is not what a user who sets them expects."""
    with pytest.raises(v.OptionError, match=rf"^kafka\.{setting} is not supported: .*{says}"):
        o.parse_write({**SERVERS, f"kafka.{setting}": "1"})


def test_settings_of_producers_are_obeyed_or_refused_one_and_all():
    """Configs that Kafka's producer has, and consumers do not."""
    of_writers = {
        *("acks", "batch.size", "buffer.memory", "compression.type", "compression.gzip.level"),
        *("compression.lz4.level", "compression.zstd.level", "delivery.timeout.ms"),
        *("enable.idempotence", "linger.ms", "max.block.ms", "max.request.size"),
        *("max.in.flight.requests.per.connection", "transaction.timeout.ms"),
    }
    of_both = {"bootstrap.servers", "client.id", "request.timeout.ms", "default.api.timeout.ms"}
    of_consumers = {
        *("allow.auto.create.topics", "check.crcs", "client.rack", "exclude.internal.topics"),
        *("isolation.level", "key.deserializer", "value.deserializer", "transactional.id"),
        "partition.assignment.strategy",
    }
    starts = ("ssl.", "sasl.", "security.", "fetch.", "max.poll.", "max.partition.", "group.")
    starts += ("session.", "heartbeat.", "auto.commit.", "auto.offset.", "enable.auto.")
    starts += ("metadata.recovery.rebootstrap.",)
    left = {one for one in JAVA_CLIENT if not one.startswith(starts)}
    left -= of_writers | of_both | of_consumers

    assert left - o._REFUSED_WRITE.keys() == set()


@pytest.mark.parametrize(
    ("given", "says"),
    [({}, r'\.option\("kafka.bootstrap.servers"'), ({"bootstrap.servers": "a:1"}, "write kafka.")],
)
def test_missing_servers_are_refused(given, says):
    with pytest.raises(v.OptionError, match=says):
        o.parse_write(given)
    with pytest.raises(v.OptionError, match=says):
        o.parse_read({"subscribe": "t", **given}, streaming=False)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kafka.bootstrap.servers": "host"}, "kafka.bootstrap.servers: 'host' is not host:port"),
        ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol: 'TLS' is not one of PLAIN"),
        ({"kafka.security.protocol": "SASL_SSL"}, "sasl.mechanism: set it: PLAIN"),
        ({"kafka.request.timeout.ms": "30s"}, "kafka.request.timeout.ms is '30s': write a whole"),
        ({"kafka.request.timeout.ms": "0"}, "kafka.request.timeout.ms: '0' is not a positive"),
        ({"kafka.max.partition.fetch.bytes": "abc"}, "is 'abc': write a whole number"),
        ({"kafka.max.poll.records": "-5"}, "must not be negative: write 0 or more"),
        ({"kafka.enable.idempotence": "maybe"}, "is 'maybe': write true or false"),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "BKS"},
            "kafka.ssl.truststore.type: BKS is not one of JKS, PKCS12, PEM",
        ),
    ],
)
def test_settings_that_no_client_takes_are_refused_before_there_is_a_task(given, says):
    with pytest.raises(v.OptionError, match=says):
        o.parse_write({**SERVERS, **given})
    with pytest.raises(v.OptionError, match=says):
        o.parse_read({"subscribe": "t", **SERVERS, **given}, streaming=True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topic": ""}, "topic is blank: write a name, or leave the option out"),
        ({"topic": "t", "writeId": " "}, "writeId is blank"),
        ({"delivery": "once"}, "at-least-once or exactly-once"),
        ({"lostTransactions": "keep"}, "write fail, rewrite or skip"),
        ({"delivery": "exactly-once", "kafka.transactional.id": "x"}, "transactionalIdPrefix"),
        ({"keepTimestamps": "x"}, "true or false"),
    ],
)
def test_write_refusals_say_what_to_write(given, says):
    with pytest.raises(v.OptionError, match=says):
        o.parse_write({**SERVERS, **given})


def test_settings_lose_their_prefix_and_keep_their_values():
    got = read(**{"kafka.sasl.username": "u", "kafka.sasl.password": "A b"})

    assert got.kafka == {"sasl.username": "u", "sasl.password": "A b"}


def test_group_of_either_name_is_the_group():
    assert read(groupId="g").group_id == "g"
    assert read(**{"kafka.group.id": "h"}).group_id == "h"
    assert read(groupId="g", startingOffsets="committed").starting.kind is v.LimitKind.COMMITTED


def test_misspelt_names_get_a_warning_with_the_likely_one(caplog):
    with caplog.at_level(logging.WARNING):
        read(startingOfsets="earliest", path="x", **{"kafka.isolation.levels": "x"})

    text = caplog.text
    assert "did you mean startingOffsets?" in text
    assert "did you mean kafka.isolation.level?" in text
    assert "path" not in text


def test_options_of_another_use_get_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        read(maxOffsetsPerTrigger="5", minOffsetsPerTrigger="1", maxTriggerDelay="1m")

    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
        assert f"option {name} has no effect here" in caplog.text


def test_every_option_name_is_told_once():
    names = [option.name.lower() for option in OPTIONS]

    assert len(names) == len(set(names))
    assert {"auto.offset.reset", "isolation.level", "compression.type"} <= KNOWN_SETTINGS
