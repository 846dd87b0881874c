"""``kbroker consume``: the records of topics on stdout."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kbroker.cli.arguments import FORMATS, Action, CommandFailed, Usage, yaml_text
from kbroker.cli.connecting import add_connection, client_settings, connected
from kbroker.cli.consuming import BEGINNING, END, Limits, check_group, is_pattern, partitions
from kbroker.cli.records_text import (
    FORMAT_HELP,
    RecordTable,
    compiled,
    json_line,
    unescaped,
    yaml_item,
)
from kbroker.cli.times import duration_ms, time_ms

if TYPE_CHECKING:
    from kbroker.client.batches.topic_reader import ReadRecord
    from kbroker.client.connections.cluster import Cluster

    TopicPartition = tuple[str, int]

_EPILOG = f"""\
Reads all partitions, and then waits for more; without --group, no group is involved. Records of a
partition are in order, those of different partitions are not. It ends at the first limit that is
reached: --until, --until-time and --per-partition are for each partition.

{FORMAT_HELP}

examples:
  kbroker consume orders                        everything, and what comes
  kbroker consume orders --tail 10 --exit       the last ten of each partition
  kbroker consume orders --since 15m -f '%p %o %k: %v\\n'
  kbroker consume orders -o table --since 1h    everything about them, for people
  kbroker consume orders -o json --exit | jq .value
  kbroker consume orders 'billing-*' --until end
  kbroker consume orders --from-time 2026-11-27T08:00:00 --until-time 2026-11-27T09:00:00
  kbroker consume orders --offset 100 --until 200 --partition 3
  kbroker consume orders -g billing -n 10       as a member of a group, which commits
  kbroker consume orders -e -K ' = ' -D '\\0' | xargs -0 -n 1 echo"""


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "topic", nargs="+", metavar="TOPIC",
        help="names, in which * and ? stand for others; of what is there when it begins",
    )  # fmt: skip
    parser.add_argument(
        "-g", "--group", metavar="GROUP",
        help="read as a member of this group, from where it is, and commit what was printed; "
        "patterns also match topics that come later",
    )  # fmt: skip
    parser.add_argument(
        "-p",
        "--partition",
        action="append",
        default=[],
        type=_whole,
        metavar="N",
        help="only this partition; may be repeated",
    )
    _describe_beginning(parser)
    _describe_end(parser)
    _describe_output(parser)
    add_connection(parser)


def _describe_beginning(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--offset",
        type=_offset,
        default=BEGINNING,
        metavar="WHERE",
        help=f"where to begin: {BEGINNING}, {END}, or an offset ({BEGINNING})",
    )
    where.add_argument(
        "--from-beginning", dest="offset", action="store_const", const=BEGINNING, help="the same"
    )
    where.add_argument(
        "--from-time", type=time_ms, metavar="TIME", help="begin at the first record after it (UTC)"
    )
    where.add_argument(
        "--since", type=duration_ms, metavar="DURATION", help="begin so long ago, such as 15m"
    )
    where.add_argument(
        "--tail", type=_whole, metavar="N", help="begin with the last N of each partition"
    )


def _describe_end(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--max-messages", type=_positive, metavar="N", help="end after so many records"
    )
    parser.add_argument(
        "-N", "--per-partition", type=_positive, metavar="N",
        help="end after so many records of each partition",
    )  # fmt: skip
    parser.add_argument(
        "--until", type=_until, metavar="WHERE",
        help=f"where to end: {END}, of what there is now, or an offset, which is not read",
    )  # fmt: skip
    parser.add_argument(
        "--until-time", type=time_ms, metavar="TIME",
        help="end before the first record from this time on (UTC)",
    )  # fmt: skip
    parser.add_argument(
        "-e", "--exit", dest="until", action="store_const", const=END,
        help=f"the same as --until {END}",
    )  # fmt: skip


def _describe_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--read-committed",
        action="store_true",
        help="leave out aborted transactions, and wait for open ones",
    )
    parser.add_argument("-f", "--format", metavar="FORMAT", help=r"how a record looks ('%%v\n')")
    parser.add_argument(
        "-K", "--key-separator", metavar="TEXT",
        help=r"print keys, too, with this text between key and value, such as : or '\t'",
    )  # fmt: skip
    parser.add_argument(
        "-D", "--delimiter", metavar="TEXT", help=r"what is printed after each value ('\n')"
    )  # fmt: skip
    parser.add_argument(
        "-o",
        "--output",
        choices=("value", *FORMATS),
        default="value",
        help="lines of values, a table, lines of JSON objects with everything, or the same as a "
        "YAML list (value)",
    )


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 1 << 63):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    if not (number := _whole(text)):
        raise argparse.ArgumentTypeError("'0' is too few")
    return number


def _offset(text: str) -> str | int:
    if text in (BEGINNING, END):
        return text
    try:
        return _whole(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither {BEGINNING}, {END} nor an offset"
        ) from None


def _until(text: str) -> str | int:
    if text == END:
        return text
    try:
        return _whole(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither {END} nor an offset") from None


def _consume(options: argparse.Namespace) -> None:
    write = _writer(options)
    rest = write.rest if isinstance(write, RecordTable) else bytes
    if options.group is not None:
        check_group(options)
    with connected(options) as cluster:
        turns = (
            _as_group(cluster, options) if options.group is not None else _alone(cluster, options)
        )
        count = _print(turns, write, rest)
        if options.output == "yaml" and not count:
            print(yaml_text([]))


def _writer(options: argparse.Namespace) -> Callable[[ReadRecord], bytes]:
    """Raises Usage for ways to print that exclude each other."""
    parts = [options.key_separator is not None, options.delimiter is not None]
    if options.format is not None and any(parts):
        raise Usage("--format says all: leave out --key-separator and --delimiter")
    if options.output != "value":
        for option, is_given in zip(
            ("--format", "--key-separator", "--delimiter"),
            (options.format is not None, *parts),
            strict=True,
        ):
            if is_given:
                raise Usage(f"{option} does not go with -o {options.output}")
        if options.output == "table":
            return RecordTable(with_topic=len(options.topic) > 1 or is_pattern(options.topic[0]))
        return json_line if options.output == "json" else yaml_item
    if options.format is not None:
        return compiled(options.format)
    separator = None if options.key_separator is None else unescaped(options.key_separator)
    delimiter = b"\n" if options.delimiter is None else unescaped(options.delimiter)

    def write(record: ReadRecord) -> bytes:
        key = b"" if separator is None else (record.key or b"") + separator
        return key + (record.value or b"") + delimiter

    return write


def _alone(cluster: Cluster, options: argparse.Namespace) -> Iterator[Iterable[ReadRecord]]:
    from kbroker.cli.consuming import Reading
    from kbroker.client.batches.topic_reader import TopicReader

    positions = _positions(cluster, options)
    reader = TopicReader(cluster, positions, read_committed=options.read_committed)
    limits = Limits(options.max_messages, options.per_partition, options.until, options.until_time)
    return Reading(reader, limits).turns()


def _as_group(cluster: Cluster, options: argparse.Namespace) -> Iterator[Iterable[ReadRecord]]:
    """Says at once that a topic does not exist: a member would wait for it."""
    from kbroker.cli.consuming import GroupReading
    from kbroker.client.connections.security import SETTINGS as OF_SECURITY
    from kbroker.client.consumer.consumer_settings import SETTINGS

    partitions(cluster, [name for name in options.topic if not is_pattern(name)], ())
    settings = {
        name: value
        for name, value in client_settings(options).items()
        if name in SETTINGS or name in OF_SECURITY
    }
    return GroupReading(options, settings).turns()


def _print(
    turns: Iterator[Iterable[ReadRecord]],
    write: Callable[[ReadRecord], bytes],
    rest: Callable[[], bytes],
) -> int:
    """The number of records. rest: what ``write`` has held back."""
    out = sys.stdout.buffer
    count = 0
    for records in turns:
        try:
            for record in records:
                out.write(write(record))
                count += 1
        finally:
            out.write(rest())
        out.flush()
    return count


def _positions(cluster: Cluster, options: argparse.Namespace) -> dict[TopicPartition, int]:
    """Where to begin in each partition. Raises CommandFailed for a topic or partition that is not
    there, and for an offset that no partition has.
    """
    from kbroker.client.admin.groups import offsets_at
    from kbroker.client.batches.offsets import EARLIEST, LATEST

    keys = partitions(cluster, options.topic, options.partition)
    if options.from_time is not None:
        return offsets_at(cluster, keys, options.from_time)
    if options.since is not None:
        return offsets_at(cluster, keys, max(int(time.time() * 1000) - options.since, 0))
    if options.tail is None and options.offset == END:
        return offsets_at(cluster, keys, LATEST)
    starts = offsets_at(cluster, keys, EARLIEST)
    if options.tail is None and options.offset == BEGINNING:
        return starts
    ends = offsets_at(cluster, keys, LATEST)
    if options.tail is not None:
        return {key: max(ends[key] - options.tail, starts[key]) for key in keys}
    return _at_offset(options.offset, starts, ends)


def _at_offset(
    offset: int, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Partitions that do not have the offset begin at their start or end."""
    if not any(starts[key] <= offset <= ends[key] for key in starts):
        held = "; ".join(f"{t}-{n} has [{starts[t, n]}, {ends[t, n]})" for t, n in starts)
        raise CommandFailed(f"no partition has offset {offset}: {held}")
    return {key: min(max(offset, starts[key]), ends[key]) for key in starts}


ACTION = Action("print the records of topics", _describe, _consume, _EPILOG)
