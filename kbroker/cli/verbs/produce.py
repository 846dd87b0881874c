"""``kbroker produce``: lines of stdin become records."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kbroker.cli.arguments import Action, Failed, Usage
from kbroker.cli.connecting import add_connection, client_settings, connected
from kbroker.cli.records_text import BadLine, record_of_json, unescaped

if TYPE_CHECKING:
    from kbroker.client import KafkaProducer

# BOUND: bytes of a line; a producer sends no larger record, either (max.request.size).
LINE_BYTES_MAX = 64 << 20
# BOUND: records whose result is not known yet; beyond, the oldest is waited for.
_UNKNOWN_MAX = 100_000
_EPILOG = """\
Each line is the value of a record. On a terminal, Ctrl-D ends.

examples:
  kbroker produce orders < values.txt
  echo 'alice:42' | kbroker produce orders -K :
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
        "-f",
        "--format",
        choices=("text", "json"),
        default="text",
        help="lines of text, or of JSON objects as kbroker consume prints them (text)",
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


def _produce(found: argparse.Namespace) -> None:
    make = _maker(found)
    settings = _settings(found)
    with connected(found) as cluster:
        # Before a line is read: that nobody can be reached, or may write, is said at once.
        topic = cluster.topic_to_write(found.topic)
        if found.partition is not None and found.partition not in topic.partitions:
            raise Failed(f"topic {found.topic} has no partition {found.partition}")
        from kbroker.client import KafkaProducer

        producer = KafkaProducer(settings)
        try:
            count = _send_all(producer, found.topic, make)
        finally:
            producer.close(found.timeout)
    noun = "record" if count == 1 else "records"
    print(f"wrote {count} {noun} to {found.topic}", file=sys.stderr)


def _settings(found: argparse.Namespace) -> dict[str, Any]:
    """What the producer gets: of the client's settings those that it has. Raises Usage."""
    from kbroker.client.connections.security import SETTINGS as OF_SECURITY
    from kbroker.client.producer.producer_settings import SETTINGS

    timeout_ms = int(found.timeout * 1000)
    settings: dict[str, Any] = {
        name: value
        for name, value in client_settings(found).items()
        if name in SETTINGS or name in OF_SECURITY
    }
    settings |= {"max.block.ms": timeout_ms}
    if found.compression:
        settings["compression.type"] = found.compression
    for text in found.property:
        name, equals, value = text.partition("=")
        if not equals:
            raise Usage(f"--property {text!r}: write NAME=VALUE")
        settings[name] = value
    return settings


def _send_all(producer: KafkaProducer, topic: str, make: Callable[[bytes], dict[str, Any]]) -> int:
    """Send every line and wait for the results; returns how many. Raises Failed for the first that
    was not written, and ends there.
    """
    waiting: deque[tuple[int, Any]] = deque()
    number = 0
    for number, line in enumerate(_lines(), 1):
        try:
            fields = make(line)
        except BadLine as error:
            _settle(waiting, 0)
            raise Failed(f"line {number}: {error}") from None
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
            raise Failed(f"line {number}: {error}")


def _lines() -> Iterator[bytes]:
    source = sys.stdin.buffer
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise Failed(f"line {number} has more than {LINE_BYTES_MAX} bytes")
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _maker(found: argparse.Namespace) -> Callable[[bytes], dict[str, Any]]:
    """What makes the arguments of ``send`` from a line. Raises Usage."""
    headers = []
    for text in found.header:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Usage(f"--header {text!r}: write NAME=VALUE")
        headers.append((name, value.encode()))
    if found.format == "json":
        if found.key is not None or found.key_separator is not None:
            raise Usage("keys are in the JSON objects: leave out --key and --key-separator")
        return lambda line: _json_fields(line, headers, found.partition)
    fixed = None if found.key is None else found.key.encode()
    separator = None if found.key_separator is None else unescaped(found.key_separator)
    if separator == b"":
        raise Usage("--key-separator is empty")

    def make(line: bytes) -> dict[str, Any]:
        key, value = fixed, line
        if separator is not None:
            key, sign, value = line.partition(separator)
            if not sign:
                raise BadLine(f"no {found.key_separator!r} after a key")
        return {
            "key": None if found.null and not key else key,
            "value": None if found.null and not value else value,
            "headers": headers,
            "partition": found.partition,
        }

    return make


def _json_fields(
    line: bytes, headers: list[tuple[str, bytes]], partition: int | None
) -> dict[str, Any]:
    fields = record_of_json(line)
    fields["headers"] += headers
    if partition is not None:
        fields["partition"] = partition
    return fields


ACTION = Action("write lines of stdin as records", _describe, _produce, _EPILOG)
