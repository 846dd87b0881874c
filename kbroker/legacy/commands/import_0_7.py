"""``kbroker import-0.7``: fills topics from log directories of Kafka 0.7."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kbroker.cli.arguments import Action, CommandFailed, Usage, add_format, printed
from kbroker.cli.connecting import add_connection, connected
from kbroker.wording import shown

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster
    from kbroker.legacy.offset_pairs import OffsetPairs
    from kbroker.legacy.old_import import ImportCounts, Planned
    from kbroker.legacy.old_logs import Bad, OldPartition
    from kbroker.legacy.old_nodes import Layout

_MIB = 1 << 20
_LAYOUT, _LOCK = "layout.json", "lock"
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_COLUMNS = {
    "old": "OLD",
    "segments": "SEGMENTS",
    "bytes": "BYTES",
    "topic": "TOPIC",
    "partition": "PARTITION",
}
_OFFSET_COLUMNS = {
    "group": "GROUP",
    "old": "PARTITION OF 0.7",
    "position": "OFFSET OF 0.7",
    "topic": "TOPIC",
    "partition": "PARTITION",
    "offset": "OFFSET",
}
_EPILOG = """\
docs/import-0.7.md has the whole of it.

examples:
  kbroker import-0.7 layout --zookeeper old:2181 --state moved     while 0.7 still runs
  kbroker import-0.7 plan 0=/data/kafka-logs --state moved
  kbroker import-0.7 run 0=/data/kafka-logs --state moved -b new:9092
  kbroker import-0.7 offsets --zookeeper old:2181 --state moved --commit -b new:9092"""


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", required=True, metavar="DIR", help="where the import keeps its own files"
    )


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories",
        nargs="+",
        metavar="ID=DIR",
        help="the log directory (log.dir) of a broker of 0.7, with its brokerid",
    )
    _add_state(parser)
    parser.add_argument(
        "--topics", default=".*", metavar="REGEX", help="a regular expression for whole names"
    )


def _describe_plan(parser: argparse.ArgumentParser) -> None:
    _add_sources(parser)
    add_format(parser)


def _describe_run(parser: argparse.ArgumentParser) -> None:
    _add_sources(parser)
    parser.add_argument(
        "--compression", choices=_CODECS, default="none", help="of the new batches (none)"
    )
    for option, default, text in (
        ("batch-bytes", 900_000, "of a batch of several records"),
        ("message-max-bytes", 64 * _MIB, "of a message of 0.7; a larger one is left out"),
        ("decompressed-max-bytes", 64 * _MIB, "of what a compressed one holds; likewise"),
    ):
        parser.add_argument(
            f"--{option}", type=_count, default=default, metavar="N", help=f"{text} ({default})"
        )
    parser.add_argument(
        "--report",
        type=_count,
        default=10,
        metavar="SECONDS",
        help="time between lines about progress (10)",
    )
    add_connection(parser)


def _describe_layout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--zookeeper", required=True, metavar="HOST:PORT[,...]", help="the ZooKeeper of 0.7"
    )
    _add_state(parser)


def _describe_offsets(parser: argparse.ArgumentParser) -> None:
    _describe_layout(parser)
    parser.add_argument("--group", metavar="NAME", help="this one only")
    parser.add_argument(
        "--commit", action="store_true", help="commit them, for groups that do not run"
    )
    add_format(parser)
    add_connection(parser)


# -- what there is


def _sources(options: argparse.Namespace) -> list[OldPartition]:
    from kbroker.legacy.old_logs import partitions_in

    partitions: list[OldPartition] = []
    try:
        wanted = re.compile(options.topics)
    except re.error as error:
        raise Usage(f"--topics {options.topics}: {error}") from error
    for text in options.directories:
        number, equals, path = text.partition("=")
        if not equals or not number.isdecimal():
            raise Usage(f"{text}: say of which broker it is, as in 0=/data/kafka-logs")
        try:
            present = partitions_in(path, int(number))
        except OSError as error:
            raise CommandFailed(f"{path}: {error.strerror}") from error
        _name_empty(path, present)
        partitions += present
    names = [each.name for each in partitions]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Usage(f"{min(twice)} is in two directories: give each broker its own id")
    return [each for each in partitions if wanted.fullmatch(each.topic)]


def _name_empty(path: str, partitions: Sequence[OldPartition]) -> None:
    """Directories in which nothing is found: a wrong one would be imported as nothing."""
    if not partitions:
        print(shown(f"{path}: there is no directory TOPIC-NUMBER"), file=sys.stderr)
    for each in partitions:
        if not each.segments:
            own = os.path.join(path, f"{each.topic}-{each.partition}")
            other = min(os.listdir(own), default="")
            has = f"it has {other}" if other else "it is empty"
            text = f"{own}: there is no file NUMBER.kafka of Kafka 0.7 ({has}); nothing is imported"
            print(shown(text), file=sys.stderr)


def _layout(state: str, partitions: Sequence[OldPartition]) -> Layout:
    """That of ZooKeeper, with what is found in directories."""
    from kbroker.legacy.old_nodes import Layout, layout_of_json

    path = os.path.join(state, _LAYOUT)
    try:
        with open(path, encoding="utf-8") as file:
            known = layout_of_json(file.read())
    except FileNotFoundError:
        known = Layout({}, {})
    except (ValueError, OSError) as error:
        raise CommandFailed(f"{path}: {error}") from error
    return known.with_found((each.topic, each.broker, each.partition) for each in partitions)


def _write_layout(state: str, layout: Layout) -> None:
    path = os.path.join(state, _LAYOUT)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(f"{layout.to_json()}\n")
    os.replace(f"{path}.new", path)


def _plan(options: argparse.Namespace) -> tuple[list[Planned], Layout]:
    from kbroker.legacy.old_import import Planned

    partitions = _sources(options)
    layout = _layout(options.state, partitions)
    return [Planned(each, layout.number(*each[:3])) for each in partitions], layout


def _show_plan(options: argparse.Namespace) -> None:
    rows = [
        {
            "old": each.old.name,
            "segments": len(each.old.segments),
            "bytes": each.old.size,
            "topic": each.old.topic,
            "partition": each.partition,
        }
        for each in _plan(options)[0]
    ]
    printed(options.output, _COLUMNS, rows, "no logs of Kafka 0.7 there")


def _save_layout(options: argparse.Namespace) -> None:
    from kbroker.client.errors import ClientError
    from kbroker.client.zookeeper.znodes import Znodes
    from kbroker.legacy.old_nodes import read_layout

    try:
        with Znodes(options.zookeeper) as nodes:
            layout = read_layout(nodes)
    except ClientError as error:
        raise CommandFailed(str(error)) from error
    if not layout.topics:
        raise CommandFailed(
            f"no broker of Kafka 0.7 has registered topics at {options.zookeeper}: they are there "
            "while it runs"
        )
    with _locked(options.state):
        _write_layout(options.state, layout)
    for topic in sorted(layout.topics):
        counts = ", ".join(f"{n} at {b}" for b, n in sorted(layout.topics[topic].items()))
        print(shown(f"{topic}: {layout.count(topic)} partitions ({counts})"))


# -- the import


@contextmanager
def _locked(state: str) -> Iterator[None]:
    """The directory of the import, for this process alone. Raises CommandFailed."""
    import fcntl

    try:
        os.makedirs(state, exist_ok=True)
        descriptor = os.open(os.path.join(state, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except OSError as error:
        raise CommandFailed(f"{state}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise CommandFailed(f"{state}: another import uses it") from error
    finally:
        os.close(descriptor)


def _run(options: argparse.Namespace) -> None:
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode
    from kbroker.legacy.old_import import ImportFailed, OldImport, every
    from kbroker.legacy.old_logs import ImportLimits, OldLogError

    limits = ImportLimits(
        options.message_max_bytes,
        options.decompressed_max_bytes,
        options.batch_bytes,
        _CODECS.index(options.compression),
    )
    with _locked(options.state), connected(options) as cluster:
        plan, layout = _plan(options)
        if not plan:
            raise CommandFailed("no logs of Kafka 0.7 there")
        _create(cluster, plan, layout)
        report = _reporter(sum(each.old.size for each in plan))
        work = OldImport(
            cluster, options.state, limits, name_bad=_name_bad, report=every(options.report, report)
        )
        try:
            work.run(plan)
            # For `offsets`; not before, because an id may have been given by mistake.
            _write_layout(options.state, layout)
        except (ImportFailed, OldLogError) as error:
            raise CommandFailed(str(error)) from error
        except OSError as error:
            raise CommandFailed(f"{error.filename or options.state}: {error.strerror}") from error
        except RejectedError as error:
            if error.code == ErrorCode.MESSAGE_TOO_LARGE:
                raise CommandFailed(f"{error}: raise max.message.bytes of the topic") from error
            raise
        finally:
            report(work.counts)


def _create(cluster: Cluster, plan: Sequence[Planned], layout: Layout) -> None:
    """The topics that are missing."""
    from kbroker.client.admin.topics import NewTopic, create_topics, list_topics

    wanted = {each.old.topic: layout.count(each.old.topic) for each in plan}
    there = {topic.name: len(topic.partitions) for topic in list_topics(cluster)}
    for topic, count in wanted.items():
        if there.get(topic, count) < count:
            raise CommandFailed(
                f"topic {topic} has {there[topic]} partitions, and Kafka 0.7 has {count}: add some"
            )
    new = [NewTopic(topic, count) for topic, count in wanted.items() if topic not in there]
    for topic, result in create_topics(cluster, new).items():
        if isinstance(result, Exception):
            raise CommandFailed(f"cannot create topic {topic}: {result}")


def _name_bad(planned: Planned, bad: Bad) -> None:
    many = f"{bad.messages} messages in it: " if bad.messages > 1 else ""
    text = f"{planned.old.name}, offset {bad.position}, {bad.size} bytes: {many}{bad.why}"
    print(shown(f"left out: {text}"), file=sys.stderr)


def _reporter(total: int) -> Any:
    before = [time.monotonic(), 0.0]

    def report(counts: ImportCounts) -> None:
        now = time.monotonic()
        rate = (counts.bytes - before[1]) / max(now - before[0], 1e-3)
        before[:] = [now, counts.bytes]
        print(
            f"imported {counts.records:,} records, {counts.bytes / _MIB:,.1f} of "
            f"{total / _MIB:,.1f} MB, {rate / _MIB:,.1f} MB/s, {counts.bad:,} messages left out",
            file=sys.stderr,
            flush=True,
        )

    return report


# -- offsets


def _offsets(options: argparse.Namespace) -> None:
    from kbroker.client.errors import ClientError
    from kbroker.client.zookeeper.znodes import Znodes
    from kbroker.legacy.old_nodes import read_group_offsets

    layout = _layout(options.state, [])
    try:
        with Znodes(options.zookeeper) as nodes:
            old = read_group_offsets(nodes)
    except ClientError as error:
        raise CommandFailed(str(error)) from error
    rows: list[dict[str, Any]] = []
    for each in old:
        if options.group not in (None, each.group):
            continue
        partition = layout.number(each.topic, each.broker, each.partition)
        rows.append(
            {
                "group": each.group,
                "old": f"{each.topic}/{each.broker}-{each.partition}",
                "position": each.position,
                "topic": each.topic,
                "partition": partition,
                "offset": _new_offset(options.state, each.topic, partition, each.position),
            }
        )
    printed(options.output, _OFFSET_COLUMNS, rows, "no offsets of groups there")
    if options.commit:
        _commit(options, rows)


def _new_offset(state: str, topic: str, partition: int, position: int) -> int | None:
    from kbroker.legacy.offset_pairs import OffsetPairs

    try:
        pairs: OffsetPairs = OffsetPairs(os.path.join(state, f"{topic}-{partition}.offsets"))
    except (OSError, ValueError):
        return None  # nothing of it is imported
    try:
        return pairs.find(position)
    finally:
        pairs.close()


def _commit(options: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    from kbroker.client.batches.offsets import commit

    by_group: dict[str, dict[tuple[str, int], tuple[int, str]]] = {}
    for row in rows:
        if row["offset"] is not None:
            key = (row["topic"], row["partition"])
            by_group.setdefault(row["group"], {})[key] = (row["offset"], "")
    with connected(options) as cluster:
        for group, offsets in by_group.items():
            commit(cluster, group, offsets)
    print(f"committed the offsets of {len(by_group)} groups", file=sys.stderr)


ACTIONS = {
    "layout": Action(
        "note the brokers and partitions that are in ZooKeeper", _describe_layout, _save_layout
    ),
    "offsets": Action(
        "show the offsets of groups in ZooKeeper, and those that they have now",
        _describe_offsets,
        _offsets,
    ),
    "plan": Action("show what would be imported, and where to", _describe_plan, _show_plan),
    "run": Action("import the logs, or continue with it", _describe_run, _run, _EPILOG),
}
