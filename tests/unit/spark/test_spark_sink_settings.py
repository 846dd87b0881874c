"""Writer configs are rejected when the writer is created, before there is a task."""

from __future__ import annotations

import pytest

from kbroker.spark.options.option_values import OptionError

types = pytest.importorskip("pyspark.sql.types")

pytestmark = pytest.mark.unit

WHERE = {"kafka.bootstrap.servers": "a:1", "topic": "t"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kafka.acks": "7"}, "write all, 1 or 0"),
        ({"kafka.compression.type": "zip"}, "write none, gzip, snappy, lz4, zstd"),
        ({"kafka.compression.type": "zstd", "kafka.compression.zstd.level": "x"}, "whole number"),
        ({"kafka.delivery.timeout.ms": "soon"}, "write a whole number"),
        ({"kafka.batch.size": "16k"}, "write a whole number"),
        ({"kafka.acks": "0", "delivery": "exactly-once"}, "needs all: leave it out"),
        ({"kafka.acks": "1", "delivery": "exactly-once"}, "needs all: leave it out"),
    ],
)
def test_setting_that_a_task_would_refuse_is_refused_before(
    given: dict[str, str], says: str
) -> None:
    from kbroker.spark.sink import batch_writer, stream_writer

    schema = types.StructType([types.StructField("value", types.StringType())])

    with pytest.raises(OptionError, match=says):
        batch_writer({**WHERE, **given}, schema, False)
    with pytest.raises(OptionError, match=says):
        stream_writer({**WHERE, **given}, schema)


def test_usual_settings_make_a_writer() -> None:
    from kbroker.spark.sink import batch_writer, producer_settings

    schema = types.StructType([types.StructField("value", types.StringType())])
    kafka = {"acks": "-1", "compression.type": "LZ4", "batch.size": "100"}

    assert batch_writer({**WHERE, **{f"kafka.{k}": v for k, v in kafka.items()}}, schema, False)
    assert producer_settings(kafka)["codec"] == "lz4"
    assert producer_settings(kafka)["acks"] == -1


def test_settings_of_kafkas_producer_are_arguments_of_ours() -> None:
    from kbroker.spark.options.options import parse_write
    from kbroker.spark.sink import producer_settings

    kafka = {
        "linger.ms": "250",
        "buffer.memory": "1000000",
        "max.in.flight.requests.per.connection": "1",
        "max.request.size": "100000",
        "max.block.ms": "3000",
    }

    made = producer_settings(kafka)
    parsed = parse_write({**WHERE, **{f"kafka.{name}": value for name, value in kafka.items()}})

    assert made["linger"] == 0.25
    assert made["buffer_bytes"] == 1_000_000
    assert made["max_in_flight"] == 1
    assert (made["request_bytes"], made["batch_bytes"]) == (100_000, 100_000)
    assert parsed.kafka["default.api.timeout.ms"] == "3000"


def test_headers_in_another_order_are_not_told_to_be_cast() -> None:
    """A cast goes by position: it would silently turn keys into values."""
    from kbroker.spark.sink import batch_writer

    header = types.StructType().add("value", types.BinaryType()).add("key", types.StringType())
    schema = types.StructType().add("value", "string").add("headers", types.ArrayType(header))

    with pytest.raises(OptionError, match=r"transform\(headers, h -> named_struct") as caught:
        batch_writer(WHERE, schema, False)
    assert "cast" not in str(caught.value)
