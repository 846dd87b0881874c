"""``kbroker produce``: lines of stdin, or what another delimiter divides, become records."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kbroker.cli.arguments import Action, CommandFailed, Usage
from kbroker.cli.connecting import add_connection, client_settings, connected
from kbroker.cli.records_text import BadLine, record_of_format, record_of_json, unescaped
from kbroker.cli.times import time_ms

if TYPE_CHECKING:
    from kbroker.client import KafkaProducer

# BOUND: bytes of a line; a producer sends no larger record, either (max.request.size).
LINE_BYTES_MAX = 64 << 20
# BOUND: records whose result is not known yet; beyond, the oldest is waited for.
_UNKNOWN_MAX = 100_000
_READ_BYTES = 1 << 16
_EPILOG = """\
Each line is the value of a record. On a terminal, Ctrl-D ends. In a format, %k is the key, %v the
value, %T the timestamp in milliseconds, %p the partition, %h headers as NAME=VALUE with commas;
between two of them is a text that the first does not contain.

examples:
  kbroker produce orders < values.txt
  echo 'alice:42' | kbroker produce orders -K :
  echo alice | kbroker produce orders --tombstone
  find . -print0 | kbroker produce files -D '\\0'
  kbroker produce orders --timestamp 2026-11-27T08:00:00 -H source=import < values.txt
  echo '1700000000000 alice 42' | kbroker produce orders -f '%T %k %v'
  kbroker consume orders -o json --exit | kbroker produce copy -f json"""


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("-k", "--key", metavar="KEY", help="the key of all records")
    keys.add_argument(
        "-K",
        "--key-separator",
        metavar="TEXT",
        help=r"what is before this text in a line is the key, such as : or '\t'",
    )
    parser.add_argument(
        "-H",
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header of all records; may be repeated",
    )
    parser.add_argument("-p", "--partition", type=int, metavar="N", help="for all records")
    parser.add_argument(
        "-Z", "--null", action="store_true", help="empty values and keys are null (tombstones)"
    )
    parser.add_argument(
        "--tombstone", action="store_true", help="each line is a key, whose value is null"
    )
    parser.add_argument(
        "--timestamp", type=time_ms, metavar="TIME",
        help="of all records that have none of their own (UTC; the time of now)",
    )  # fmt: skip
    parser.add_argument(
        "-D", "--delimiter", metavar="TEXT",
        help=r"what ends a record, such as '\0' or '\n\n' ('\n', also after '\r')",
    )  # fmt: skip
    parser.add_argument(
        "-f",
        "--format",
        default="text",
        metavar="FORMAT",
        help="text, json (objects as kbroker consume prints them), or a format, such as "
        "'%%k=%%v' (text)",
    )
    parser.add_argument(
        "-z",
        "--compression",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        default=None,
        help="(compression.type of the client's settings, or none)",
    )
    parser.add_argument(
        "-X",
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the producer, such as acks=1; may be repeated",
    )
    add_connection(parser)


def _produce(options: argparse.Namespace) -> None:
    make = _maker(options)
    settings = _settings(options)
    with connected(options) as cluster:
        # Before a line is read: that nobody can be reached, or may write, is said at once.
        topic = cluster.topic_to_write(options.topic)
        if options.partition is not None and options.partition not in topic.partitions:
            raise CommandFailed(f"topic {options.topic} has no partition {options.partition}")
        from kbroker.client import KafkaProducer

        producer = KafkaProducer(settings)
        try:
            count = _send_all(producer, options.topic, make, _pieces(options))
        finally:
            producer.close(options.timeout)
    noun = "record" if count == 1 else "records"
    print(f"wrote {count} {noun} to {options.topic}", file=sys.stderr)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the producer gets: of the client's settings those that it has. Raises Usage."""
    from kbroker.client.connections.security import SETTINGS as OF_SECURITY
    from kbroker.client.producer.producer_settings import SETTINGS

    timeout_ms = int(options.timeout * 1000)
    settings: dict[str, Any] = {
        name: value
        for name, value in client_settings(options).items()
        if name in SETTINGS or name in OF_SECURITY
    }
    settings |= {"max.block.ms": timeout_ms}
    if options.compression:
        settings["compression.type"] = options.compression
    for text in options.property:
        name, equals, value = text.partition("=")
        if not equals:
            raise Usage(f"--property {text!r}: write NAME=VALUE")
        settings[name] = value
    return settings


def _send_all(
    producer: KafkaProducer,
    topic: str,
    make: Callable[[bytes], dict[str, Any]],
    pieces: Iterator[bytes],
) -> int:
    """Send every line and wait for the results; returns how many. Raises CommandFailed for the
    first that was not written, and ends there.
    """
    waiting: deque[tuple[int, Any]] = deque()
    number = 0
    for number, line in enumerate(pieces, 1):
        try:
            fields = make(line)
        except BadLine as error:
            _settle(waiting, 0)
            raise CommandFailed(f"line {number}: {error}") from None
        waiting.append((number, producer.send(topic, **fields)))
        while waiting and waiting[0][1].done():
            _settle(waiting, len(waiting) - 1)
        if len(waiting) > _UNKNOWN_MAX:
            _settle(waiting, _UNKNOWN_MAX)
    producer.flush()
    _settle(waiting, 0)
    return number


def _settle(waiting: deque[tuple[int, Any]], left: int) -> None:
    """Wait for the oldest results until so many are left."""
    while len(waiting) > left:
        number, future = waiting.popleft()
        if (error := future.exception()) is not None:
            raise CommandFailed(f"line {number}: {error}")


def _lines() -> Iterator[bytes]:
    source = sys.stdin.buffer
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise CommandFailed(f"line {number} has more than {LINE_BYTES_MAX} bytes")
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _pieces(options: argparse.Namespace) -> Iterator[bytes]:
    return _lines() if options.delimiter is None else _divided(unescaped(options.delimiter))


def _divided(delimiter: bytes) -> Iterator[bytes]:
    """What is between delimiters; what is after the last one, unless it is empty."""
    source: Any = sys.stdin.buffer
    left = b""
    while piece := source.read1(_READ_BYTES):
        # The beginning of a delimiter may be at the end of what is left.
        start = max(len(left) - len(delimiter) + 1, 0)
        left += piece
        if delimiter in left[start:]:
            *whole, left = left.split(delimiter)
            yield from whole
        if len(left) > LINE_BYTES_MAX:
            raise CommandFailed(f"a record has more than {LINE_BYTES_MAX} bytes")
    if left:
        yield left


def _maker(options: argparse.Namespace) -> Callable[[bytes], dict[str, Any]]:
    """What makes the arguments of ``send`` from a line. Raises Usage."""
    headers = []
    for text in options.header:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Usage(f"--header {text!r}: write NAME=VALUE")
        headers.append((name, value.encode()))
    if options.delimiter == "":
        raise Usage("--delimiter is empty")
    make = _text_maker(options)
    if options.format != "text":
        if options.key is not None or options.key_separator is not None or options.tombstone:
            what = "the JSON objects" if options.format == "json" else "the format"
            raise Usage(f"keys are in {what}: leave out --key, --key-separator and --tombstone")
        make = record_of_json if options.format == "json" else record_of_format(options.format)

    def complete(line: bytes) -> dict[str, Any]:
        fields = make(line)
        fields["headers"] = [*fields.get("headers", ()), *headers]
        if options.partition is not None:
            fields["partition"] = options.partition
        if fields.get("timestamp_ms") is None:
            fields["timestamp_ms"] = options.timestamp
        if options.null:
            fields |= {name: fields.get(name) or None for name in ("key", "value")}
        return fields

    return complete


def _text_maker(options: argparse.Namespace) -> Callable[[bytes], dict[str, Any]]:
    """Key and value of a line. Raises Usage."""
    fixed = None if options.key is None else options.key.encode()
    separator = None if options.key_separator is None else unescaped(options.key_separator)
    if separator == b"":
        raise Usage("--key-separator is empty")
    if options.tombstone:
        if fixed is not None or separator is not None:
            raise Usage("with --tombstone, a line is a key: leave out --key and --key-separator")
        return lambda line: {"key": line, "value": None}

    def make(line: bytes) -> dict[str, Any]:
        if separator is None:
            return {"key": fixed, "value": line}
        key, sign, value = line.partition(separator)
        if not sign:
            raise BadLine(f"no {options.key_separator!r} after a key")
        return {"key": key, "value": value}

    return make


ACTION = Action("write lines of stdin as records", _describe, _produce, _EPILOG)
