"""``kbroker-spark-mirror``: copy topics from one cluster to another, once or forever."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from kbroker import __version__
from kbroker.client.errors import ClientError
from kbroker.spark.direct import Runner, SparkMissing, TaskError, runner_of
from kbroker.spark.load.arguments import (
    add_settings,
    add_topics,
    master_of,
    minutes_of,
    name_of,
    refuse_uncommitted,
    tell_doubts,
    tell_no_match,
)
from kbroker.spark.load.commits import LoadError, TopicPartition
from kbroker.spark.load.positions import PositionBounds
from kbroker.spark.load.source import BrokerSource, id_text
from kbroker.spark.mirror.partition_copy import MirrorWork
from kbroker.spark.mirror.places import up_to_date
from kbroker.spark.plan import OffsetRange, plan_ranges, with_sizes
from kbroker.spark.pool import borrowed
from kbroker.wording import counted

# How often a follower checks whether offsets of idle partitions must be renewed at the target.
_LOOK_S = 600.0
# Partitions that cannot be copied; the error names the reason.
_TOLD_MAX = 5

_ABOUT = """\
Copy topics of a Kafka cluster (kbroker or Apache Kafka) to another, each record exactly once, even
if the mirror is killed and restarted. Batches are copied as they are, still compressed. Partitions
stay the same if both clusters have equally many; otherwise keys decide. Create the topics at the
target first; a target that creates topics automatically uses its own number of partitions.

  kbroker-spark-mirror --from source:9092 --to target:9092 --topics clicks,orders

The target stores how far the mirror is: the source's offsets are committed there for the group
kbroker-mirror.NAME, in the transactions that write the records. Consumers that must not see records
of aborted transactions read with isolation.level=read_committed.

These offsets expire when no mirror has run for offsets.retention.minutes (a week by default), and
everything would be copied again: run the mirror at least every few days."""


def build_parser() -> argparse.ArgumentParser:
    """The parser with all arguments."""
    parser = argparse.ArgumentParser(
        prog="kbroker-spark-mirror",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kbroker {__version__}")
    parser.add_argument(
        "--from", dest="source", required=True, metavar="HOST:PORT", help="brokers of the source"
    )
    parser.add_argument(
        "--to", dest="target", required=True, metavar="HOST:PORT", help="brokers of the target"
    )
    add_topics(parser)
    parser.add_argument(
        "--name",
        type=name_of,
        default="mirror",
        help="name of the mirror; under another name, everything is copied again (mirror)",
    )
    for side in ("from", "to"):
        add_settings(parser, side, f"the client for --{side}")
    parser.add_argument(
        "--follow", action="store_true", help="keep running: copy new records as they arrive"
    )
    parser.add_argument(
        "--max-minutes",
        type=minutes_of,
        metavar="N",
        help="with --follow: start nothing new after this time",
    )
    parser.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="continue when records were deleted at the source before they were copied, or a "
        "topic was deleted and recreated",
    )
    parser.add_argument(
        "--master",
        type=master_of,
        metavar="URL",
        help="the Spark master to use; 'none' copies in this process",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 failed, 2 wrong arguments."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    if given.max_minutes is not None and not given.follow:
        parser.error("--max-minutes is only for --follow; leave it out")
    refuse_uncommitted(parser, "--from-setting", given.from_setting)
    try:
        return _run(given)
    except (LoadError, ClientError, SparkMissing, TaskError) as err:
        print(f"kbroker-spark-mirror: {err}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(given: argparse.Namespace) -> int:
    tell_doubts("kbroker-spark-mirror", [*given.from_setting, *given.to_setting])
    source = BrokerSource(
        given.source, dict(given.from_setting), tuple(given.topics), given.pattern
    )
    # Errors of topics or clusters are found before Spark starts.
    present = source.bounds()
    if not present:
        tell_no_match("kbroker-spark-mirror", given, given.source, given.follow)
    _check_target(given, present)
    runner = runner_of("kbroker-spark-mirror", given.master)
    work = MirrorWork(
        given.name,
        given.source,
        dict(given.from_setting),
        given.target,
        dict(given.to_setting),
        given.allow_data_loss,
    )
    begun = looked = time.monotonic()
    done: dict[tuple[str, int], tuple[str, int]] = {}
    while True:
        if not present:
            present = source.bounds()
            _check_target(given, present)
        if time.monotonic() - looked > _LOOK_S:
            looked = time.monotonic()
            done.clear()
        copied = mirror_once(source, runner, work, done)
        over = given.max_minutes is not None and time.monotonic() - begun > given.max_minutes * 60
        if not given.follow or over:
            if not given.follow and not copied:
                print("nothing new", flush=True)
            return 0
        if not copied:
            time.sleep(1.0)


def _check_target(
    given: argparse.Namespace, present: Mapping[TopicPartition, PositionBounds]
) -> None:
    """Report topics that do not keep their partitions; raises LoadError if both sides are one
    cluster: a follower would never end.
    """
    ids = {topic: one.topic_id for (topic, _), one in present.items()}
    with borrowed(given.target, dict(given.to_setting)) as target:
        topics = target.topics(sorted(ids))
    same = sorted(
        name for name, topic in topics.items() if ids[name] and id_text(topic) == ids[name]
    )
    if same:
        raise LoadError(
            f"--from and --to are the same cluster: topic {same[0]} would be copied into itself"
        )
    for name, count in sorted(Counter(topic for topic, _ in present).items()):
        if name not in topics:
            said = (
                f"does not exist at {given.target}, which may create it with another number of "
                "partitions"
            )
        elif (there := len(topics[name].partitions)) != count:
            said = (
                f"has {counted(there, 'partition')} at {given.target} and {count:,} at "
                f"{given.source}: records go by their keys"
            )
        else:
            continue
        print(f"kbroker-spark-mirror: topic {name} {said}", file=sys.stderr, flush=True)


def mirror_once(
    source: BrokerSource,
    runner: Runner,
    work: MirrorWork,
    done: dict[tuple[str, int], tuple[str, int]] | None = None,
) -> int:
    """Copy what is available now, one task per partition; returns the number of records.

    done: topic ids and ends of partitions after the caller's last call; kept up to date. Partitions
    that still end there are left alone. One with another id or an earlier end (it was recreated) is
    examined and rejected. For the others, the target is asked for their offsets in one request.

    Raises LoadError for partitions that cannot be copied, once all others are.
    """
    reached = done if done is not None else {}
    bounds = source.bounds()
    reached |= _at_target(work, {one: log for one, log in bounds.items() if one not in reached})
    sizes = {key: (one.size_bytes, one.end - one.start) for key, one in bounds.items()}
    wanted = []
    for key, log in bounds.items():
        topic_id, last = reached.get(key, (log.topic_id, log.start))
        if log.end != last or topic_id != log.topic_id:
            goes_on = topic_id == log.topic_id and last < log.end
            wanted.append(OffsetRange(*key, last if goes_on else log.start, log.end))
    if not any(one.count > 0 for one in wanted):
        return 0
    ranges = plan_ranges(
        with_sizes(wanted, sizes), default_parallelism=runner.parallelism, by_partition=True
    )
    begun = time.monotonic()
    results = runner.run([[one] for one in ranges], work, f"kbroker-spark-mirror {work.name}")
    rows: dict[str, list[int]] = {}
    failed = sorted(one["failed"] for one in results if "failed" in one)
    for one in results:
        if "failed" in one:
            continue
        key = (one["topic"], one["partition"])
        reached[key] = (bounds[key].topic_id, one["end"])
        counts = rows.setdefault(one["topic"], [0, 0, 0])
        for place, name in enumerate(("records", "unchanged", "anew")):
            counts[place] += one[name]
    seconds = max(time.monotonic() - begun, 0.001)
    for topic, (records, unchanged, anew) in sorted(rows.items()):
        if not records:
            continue
        print(
            f"{topic}: {counted(records, 'record')}, {records / seconds:,.0f} a second, "
            f"{counted(unchanged, 'batch', 'es')} unchanged, {anew:,} rewritten",
            flush=True,
        )
    if failed:
        more = f"; and {len(failed) - _TOLD_MAX:,} more" if len(failed) > _TOLD_MAX else ""
        raise LoadError(
            f"{counted(len(failed), 'partition')} of {len(results):,} cannot be copied: "
            + "; ".join(failed[:_TOLD_MAX])
            + more
        )
    return sum(counts[0] for counts in rows.values())


def _at_target(
    work: MirrorWork, bounds: Mapping[TopicPartition, PositionBounds]
) -> dict[TopicPartition, tuple[str, int]]:
    """Topic ids and ends of the partitions that the target has everything of."""
    looked_at = {one: log for one, log in bounds.items() if log.end > log.start}
    if not looked_at:
        return {}
    with borrowed(work.target, work.target_settings) as target:
        same = up_to_date(target, work.name, looked_at)
    return {one: (bounds[one].topic_id, bounds[one].end) for one in same}


if __name__ == "__main__":
    # With spark-submit: with the signals of the installed command.
    from kbroker.commands import mirror

    sys.exit(mirror())
