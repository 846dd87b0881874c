"""``kbroker consume``: the records of a topic on stdout."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker.cli.arguments import FORMATS, Action, Failed, Usage, nearest, yaml_text
from kbroker.cli.connecting import add_connection, connected
from kbroker.cli.records_text import FORMAT_HELP, RecordTable, compiled, json_line, yaml_item
from kbroker.cli.times import duration_ms, time_ms

if TYPE_CHECKING:
    from kbroker.client.batches.topic_reader import ReadRecord, TopicReader
    from kbroker.client.connections.cluster import Cluster

    TopicPartition = tuple[str, int]

BEGINNING, END = "beginning", "end"
# How long to wait for records before the brokers are asked again: short after some came.
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.02, 0.5
_EPILOG = f"""\
Reads all partitions, and then waits for more; no group is involved. Records of a partition are in
order, those of different partitions are not.

{FORMAT_HELP}

examples:
  kbroker consume orders                        everything, and what comes
  kbroker consume orders --tail 10 --exit       the last ten of each partition
  kbroker consume orders --since 15m -f '%p %o %k: %v\\n'
  kbroker consume orders -o table --since 1h    everything about them, for people
  kbroker consume orders -o json --exit | jq .value"""


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "-p",
        "--partition",
        action="append",
        default=[],
        type=_whole,
        metavar="N",
        help="only this partition; may be repeated",
    )
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
    parser.add_argument(
        "-n", "--max-messages", type=_positive, metavar="N", help="end after so many records"
    )
    parser.add_argument(
        "-e", "--exit", action="store_true", help="end with the last record there is now"
    )
    parser.add_argument(
        "--read-committed",
        action="store_true",
        help="leave out aborted transactions, and wait for open ones",
    )
    parser.add_argument("-f", "--format", metavar="FORMAT", help=r"how a record looks ('%%v\n')")
    parser.add_argument(
        "-o",
        "--output",
        choices=("value", *FORMATS),
        default="value",
        help="lines of values, a table, lines of JSON objects with everything, or the same as a "
        "YAML list (value)",
    )
    add_connection(parser)


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


def _consume(found: argparse.Namespace) -> None:
    if found.format is not None and found.output != "value":
        raise Usage(f"--format does not go with -o {found.output}")
    table = RecordTable()
    writers: dict[str, Callable[[ReadRecord], bytes]] = {
        "json": json_line,
        "yaml": yaml_item,
        "table": table,
    }
    write = writers.get(found.output) or compiled(
        found.format if found.format is not None else "%v\\n"
    )
    rest = table.rest if write is table else bytes
    with connected(found) as cluster:
        from kbroker.client.batches.topic_reader import TopicReader

        positions = _positions(cluster, found)
        reader = TopicReader(cluster, positions, read_committed=found.read_committed)
        count = _print(reader, write, rest, found.max_messages, found.exit)
        if found.output == "yaml" and not count:
            print(yaml_text([]))


def _print(
    reader: TopicReader,
    write: Callable[[ReadRecord], bytes],
    rest: Callable[[], bytes],
    most: int | None,
    ends: bool,
) -> int:
    """The number of records. rest: what ``write`` has held back."""
    out = sys.stdout.buffer
    count, pause_s = 0, _PAUSE_MIN_S
    while True:
        before = count
        try:
            for record in reader.read(reader.ends()):
                out.write(write(record))
                count += 1
                if count == most:
                    return count
        finally:
            out.write(rest())
        out.flush()
        if ends:
            return count
        # BOUND: an idle topic is asked about twice a second.
        pause_s = _PAUSE_MIN_S if count > before else min(2 * pause_s, _PAUSE_MAX_S)
        time.sleep(pause_s)


def _positions(cluster: Cluster, found: argparse.Namespace) -> dict[TopicPartition, int]:
    """Where to begin in each partition. Raises Failed for a topic or partition that is not there,
    and for an offset that no partition has.
    """
    from kbroker.client.admin.groups import offsets_at
    from kbroker.client.batches.offsets import EARLIEST, LATEST

    keys = _partitions(cluster, found)
    if found.from_time is not None:
        return offsets_at(cluster, keys, found.from_time)
    if found.since is not None:
        return offsets_at(cluster, keys, max(int(time.time() * 1000) - found.since, 0))
    if found.tail is None and found.offset == END:
        return offsets_at(cluster, keys, LATEST)
    starts = offsets_at(cluster, keys, EARLIEST)
    if found.tail is None and found.offset == BEGINNING:
        return starts
    ends = offsets_at(cluster, keys, LATEST)
    if found.tail is not None:
        return {key: max(ends[key] - found.tail, starts[key]) for key in keys}
    return _at_offset(found.offset, starts, ends)


def _at_offset(
    offset: int, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Partitions that do not have the offset begin at their start or end."""
    if not any(starts[key] <= offset <= ends[key] for key in starts):
        held = "; ".join(f"{t}-{n} has [{starts[t, n]}, {ends[t, n]})" for t, n in starts)
        raise Failed(f"no partition has offset {offset}: {held}")
    return {key: min(max(offset, starts[key]), ends[key]) for key in starts}


def _partitions(cluster: Cluster, found: argparse.Namespace) -> list[TopicPartition]:
    name: str = found.topic
    topic: Any = cluster.topics([name]).get(name)
    if topic is None:
        meant = nearest(name, cluster.topics())
        raise Failed(f"topic {name} does not exist" + (f"; did you mean {meant}?" if meant else ""))
    for number in found.partition:
        if number not in topic.partitions:
            raise Failed(f"topic {name} has no partition {number}")
    return [(name, number) for number in dict.fromkeys(found.partition or topic.partitions)]


ACTION = Action("print the records of a topic", _describe, _consume, _EPILOG)
