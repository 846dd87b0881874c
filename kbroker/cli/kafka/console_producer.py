"""``kafka-console-producer``: lines of stdin as records."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.client_options import (
    client_settings,
    known_only,
    log_to_stderr,
    merged,
    renamed,
)
from kbroker.cli.kafka.line_reader import LineReader, LineReaderError, LineRecord
from kbroker.cli.kafka.options import Given, flag, valued
from kbroker.cli.kafka.running import (
    BOOTSTRAP,
    Tool,
    ToolFailed,
    check_bootstrap,
    pairs,
    properties_of,
)

if TYPE_CHECKING:
    from kbroker.client.producer.kafka_producer import KafkaProducer

_READER = "org.apache.kafka.tools.LineMessageReader"
_READERS = (_READER, "kafka.tools.ConsoleProducer$LineMessageReader")
_READER_TEXT = (
    "A setting of the reader: parse.key, key.separator (tab), parse.headers, headers.delimiter "
    "(tab), headers.separator (,), headers.key.separator (:), ignore.error, null.marker; may be "
    "repeated."
)
# Setting of the producer -> option; a later one of the same setting counts more.
_MERGED = (
    {
        "linger.ms": "timeout",
        "acks": "request-required-acks",
        "request.timeout.ms": "request-timeout-ms",
        "retries": "message-send-max-retries",
        "retry.backoff.ms": "retry-backoff-ms",
        "send.buffer.bytes": "socket-buffer-size",
        "buffer.memory": "max-memory-bytes",
        "batch.size": "batch-size",
        "metadata.max.age.ms": "metadata-expiry-ms",
        "max.block.ms": "max-block-ms",
    },
    {"batch.size": "max-partition-memory-bytes"},
)


def _number(name: str, argument: str, text: str, default: int, long: bool = False) -> Any:
    return valued(name, argument, text, kind=int, long=long, default=str(default))


OPTIONS = (
    valued("topic", "topic", "The topic; required."),
    BOOTSTRAP,
    valued("broker-list", "broker-list", "The same, as before Kafka 4."),
    flag("sync", "Wait for each record until it is written."),
    valued(
        "compression-codec",
        "compression-codec",
        "none, gzip, snappy, lz4 or zstd; gzip without a value.",
        optional=True,
    ),
    _number("batch-size", "size", "Bytes of a batch of one partition (batch.size).", 16384),
    _number("message-send-max-retries", "", "How often a request is sent again (retries).", 3),
    _number("retry-backoff-ms", "", "The pause before that (retry.backoff.ms).", 100, True),
    _number("timeout", "timeout_ms", "How long a batch waits for more (linger.ms).", 1000, True),
    valued(
        "request-required-acks",
        "request required acks",
        "Who must have a record: -1 all in sync, 1 the leader, 0 nobody (acks).",
        default="-1",
    ),
    _number("request-timeout-ms", "request timeout ms", "Of a request (request.timeout.ms).", 1500),
    _number(
        "metadata-expiry-ms",
        "metadata expiration interval",
        "The age of metadata that is asked for again (metadata.max.age.ms).",
        300_000,
        True,
    ),
    _number(
        "max-block-ms",
        "max block on send",
        "How long a line waits for memory and metadata.",
        60_000,
        True,
    ),
    _number(
        "max-memory-bytes",
        "total memory in bytes",
        "For records that wait (buffer.memory).",
        1 << 25,
        True,
    ),
    _number(
        "max-partition-memory-bytes",
        "memory in bytes per partition",
        "The same as --batch-size, as before Kafka 4.2.",
        16384,
    ),
    valued("line-reader", "reader_class", "What reads lines.", default=_READER),
    _number("socket-buffer-size", "size", "Of the socket (send.buffer.bytes).", 102_400),
    valued("property", "prop", "The same as --reader-property, as before Kafka 4.2."),
    valued("reader-property", "prop", _READER_TEXT),
    valued("reader-config", "config file", "A file with settings of the reader."),
    valued("producer-property", "producer_prop", "The same as --command-property, as before 4.2."),
    valued("command-property", "producer_prop", "A setting of the producer; may be repeated."),
    valued("producer.config", "config file", "The same as --command-config, as before Kafka 4.2."),
    valued("command-config", "config file", "A file with settings of the producer."),
    *(
        valued(name, "", "Has no effect; 0.8 has it, too.")
        for name in ("queue-size", "queue-enqueuetimeout-ms", "key-serializer", "value-serializer")
    ),
)


def _run(given: Given) -> int:
    given.require("topic")
    removed = "is deprecated and will be removed in a future version."
    names = {
        "config": ("producer.config", "command-config"),
        "property": ("producer-property", "command-property"),
        "reader": ("property", "reader-property"),
    }
    words = {
        key: renamed(given, old, new, f"Warning: --{old} {removed} Use --{new} instead.")
        for key, (old, new) in sorted(names.items(), key=lambda row: row[0] != "property")
    }
    if "max-partition-memory-bytes" in given:
        print(
            "Warning: --max-partition-memory-bytes is deprecated and will be removed in Apache "
            "Kafka 5.0. Use --batch-size instead."
        )
    bootstrap = given.one("bootstrap-server") or given.one("broker-list")
    check_bootstrap(bootstrap)
    reader = _reader(given, words["reader"])
    settings = _settings(given, words["config"], words["property"], str(bootstrap))
    sys.stdout.flush()
    from kbroker.client.errors import ClientError, SettingRefused
    from kbroker.client.producer.kafka_producer import KafkaProducer

    log_to_stderr()
    try:
        with KafkaProducer(settings) as producer:
            _send_lines(producer, reader, given.one("topic"), "sync" in given)
    except LineReaderError as error:
        raise ToolFailed(str(error)) from error
    except (SettingRefused, ClientError) as error:
        raise ToolFailed(str(error)) from error
    return 0


def _reader(given: Given, prop: str) -> LineReader:
    if given.one("line-reader") not in _READERS:
        raise ToolFailed(f"{given.one('line-reader')}: there is no other reader than {_READER}")
    path = given.one("reader-config")
    settings = properties_of(path) if path else {}
    try:
        return LineReader(settings | pairs(given.all(prop)))
    except LineReaderError as error:
        raise ToolFailed(str(error)) from error


def _settings(given: Given, config: str, prop: str, bootstrap: str) -> dict[str, Any]:
    from kbroker.client.producer.producer_settings import SETTINGS

    settings: dict[str, Any] = dict(known_only(client_settings(given, config, prop), SETTINGS))
    settings["bootstrap.servers"] = bootstrap
    codec = "none"
    if "compression-codec" in given:
        codec = given.one("compression-codec") or "gzip"
    settings["compression.type"] = codec
    settings.setdefault("client.id", "console-producer")
    merged(settings, given, _MERGED[0])
    if "max-partition-memory-bytes" in given:
        merged(settings, given, _MERGED[1])
    return {name: value for name, value in settings.items() if name in SETTINGS or "." in name}


def _send_lines(producer: KafkaProducer, reader: LineReader, topic: str, sync: bool) -> None:
    for record in _records(reader):
        future = producer.send(topic, record.value, key=record.key, headers=record.headers)
        if sync:
            future.result()
        else:
            future.add_done_callback(_tell)


def _tell(future: Any) -> None:
    """A record that is not written is no reason to stop, as in Kafka's tool."""
    if error := future.exception():
        print(f"ERROR {error}", file=sys.stderr)


def _records(reader: LineReader) -> Iterator[LineRecord]:
    prompt = sys.stdin.isatty() and sys.stdout.isatty()
    lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace", newline=None)
    while True:
        if prompt:
            print(">", end="", flush=True)
        line = lines.readline()
        if not line:
            return
        yield reader.record(line.removesuffix("\n"))


TOOL = Tool(
    "This tool helps to read data from standard input and publish it to Kafka.",
    OPTIONS,
    _run,
    usage_errors=True,
)
