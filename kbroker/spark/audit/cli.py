"""``kbroker-audit``: reports where records are missing. Exit codes: 0 complete, 1 failed, 2 wrong
arguments or, after the report, a tier below the threshold at its deadline.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from kbroker import __version__
from kbroker.client.errors import ClientError
from kbroker.spark.audit import counts as gather
from kbroker.spark.audit.counter import AUDIT_TOPIC
from kbroker.spark.audit.counts import Misfit, Told
from kbroker.spark.audit.report import COMPLETE, SURPLUS, Count, Line, compared
from kbroker.spark.direct import Runner, SparkMissing, TaskError, runner_of
from kbroker.spark.load.arguments import (
    add_bootstrap,
    add_settings,
    add_topics,
    master_of,
    minutes_of,
    place_of,
    refuse_uncommitted,
    tell_doubts,
    tell_no_match,
    time_of,
)
from kbroker.spark.load.commits import LoadError
from kbroker.spark.load.destination import names_database
from kbroker.spark.load.folders import folder, sink_of
from kbroker.spark.load.source import BrokerSource
from kbroker.wording import counted

EXIT_ALERT = 2
PRODUCER_TIER, BROKER_TIER = "producer", "broker"

_ABOUT = """Compare how many records of each topic every tier has seen in each ten minutes:
applications that send and receive (they count with kbroker.spark.audit.counter and write to the
audit topic), loads, and the logs of clusters. Show completeness and lag, and alert when a tier
has not seen enough in time.

  kbroker-audit --bootstrap localhost:9092 --topics clicks --load /data/lake --recount

Exit code 2, and a record in the alert topic, when a tier is below the threshold after the deadline.
"""


def share_of(text: str) -> float:
    """``0.999``, between 0 and 1."""
    try:
        share = float(text)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction; write a value such as 0.999")
    return share


def recount_of(text: str) -> tuple[str, str]:
    """``mirror=other:9092`` as the tier and its brokers."""
    tier, _, bootstrap = text.partition("=")
    if not tier or not bootstrap:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not TIER=HOST:PORT; write mirror=other:9092, or nothing for the log of "
            "--bootstrap"
        )
    return tier, bootstrap


def build_parser() -> argparse.ArgumentParser:
    """The parser with all arguments."""
    parser = argparse.ArgumentParser(
        prog="kbroker-audit",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kbroker {__version__}")
    add_bootstrap(parser)
    add_topics(parser)
    add_settings(parser)
    _add_tiers(parser)
    parser.add_argument(
        "--reference",
        metavar="TIER",
        help="the tier that the others are compared with (producer; broker for topics that no "
        "producer has counted)",
    )
    parser.add_argument(
        "--threshold",
        type=share_of,
        default=1.0,
        metavar="SHARE",
        help="alert when a tier has less than this fraction of the reference, such as 0.999 (1.0)",
    )
    parser.add_argument(
        "--deadline-minutes",
        type=minutes_of,
        default=30.0,
        metavar="N",
        help="how long after the end of a bucket a tier may take to be complete (30)",
    )
    parser.add_argument(
        "--from",
        dest="from_ms",
        type=time_of,
        metavar="TIME",
        help="only buckets from this time on: 2026-11-21T06:00:00Z, or milliseconds since 1970",
    )
    parser.add_argument(
        "--bucket-minutes", type=minutes_of, default=10.0, metavar="N", help="size of a bucket (10)"
    )
    _add_output(parser)
    parser.add_argument(
        "--master",
        type=master_of,
        metavar="URL",
        help="the Spark master to use; 'none' for this process",
    )
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    """Arguments for the output of the report."""
    parser.add_argument(
        "--alert-topic",
        default="kbroker-audit-alerts",
        help="where alerts are written (kbroker-audit-alerts); '' for none",
    )
    parser.add_argument(
        "--json", action="store_true", help="a JSON object for each bucket and tier"
    )
    parser.add_argument(
        "--all", action="store_true", help="also show complete buckets, as --json always does"
    )


def _add_tiers(parser: argparse.ArgumentParser) -> None:
    """Arguments for the tiers to compare."""
    parser.add_argument(
        "--audit-topic",
        default=AUDIT_TOPIC,
        help=f"where applications write their counts ({AUDIT_TOPIC}); '' for none",
    )
    parser.add_argument(
        "--load",
        action="append",
        type=place_of,
        default=[],
        metavar="PLACE",
        help="the --dest of a kbroker-load, as the tier 'load': a folder, a table in one, "
        "sqlite:PATH or postgresql://USER:PASSWORD@HOST:PORT/DB; may be repeated",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="name of the load, in a database that holds several (all of them); may be repeated",
    )
    parser.add_argument(
        "--recount",
        action="append",
        nargs="?",
        type=recount_of,
        const=(BROKER_TIER, ""),
        default=[],
        metavar="TIER=HOST:PORT",
        help="count the log itself, as the tier 'broker', or that of another cluster under a tier "
        "name, such as mirror=other:9092, with the same settings; may be repeated",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Report; see the module for the exit codes."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    _check_together(parser, given)
    try:
        return _report(given)
    except (LoadError, ClientError, SparkMissing, TaskError, OSError) as err:
        print(f"kbroker-audit: {err}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130


def _check_together(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Check combinations of arguments; exits with 2."""
    refuse_uncommitted(parser, "--client-setting", given.client_setting)
    places = [one if names_database(one) else str(Path(one).resolve()) for one in given.load]
    if len(set(places)) < len(places):
        parser.error("a --load is given twice and would be counted twice")
    tiers = [tier for tier, _ in given.recount] + [gather.LOAD_TIER] * bool(given.load)
    if len(set(tiers)) < len(tiers):
        parser.error(
            f"two of --recount and --load have the same tier; the tiers are {', '.join(tiers)}"
        )
    if given.name and not any(map(names_database, given.load)):
        parser.error("--name is only for loads in a database; leave it out")


def _report(given: argparse.Namespace) -> int:
    tell_doubts("kbroker-audit", given.client_setting)
    settings = dict(given.client_setting)
    source = BrokerSource(given.bootstrap, settings, tuple(given.topics), given.pattern)
    topics = {topic for topic, _ in source.bounds()}
    if not topics:
        tell_no_match("kbroker-audit", given, given.bootstrap, follow=False)
    runner = runner_of("kbroker-audit", given.master)
    now_ms = int(time.time() * 1000)
    bucket_ms = max(1, int(given.bucket_minutes * 60_000))
    counts, tiers = _gathered(given, source, topics, runner, bucket_ms, now_ms)
    references = _references(given, topics, tiers)
    _tell_alone(references, tiers)
    lines = list(
        compared(
            gather.of_topics(counts, topics, given.from_ms),
            references=references,
            tiers=tiers,
            bucket_ms=bucket_ms,
            threshold=given.threshold,
            deadline_ms=int(given.deadline_minutes * 60_000),
            now_ms=now_ms,
        )
    )
    _print(given, lines)
    alerts = [one for one in lines if one.is_alert]
    if alerts and given.alert_topic:
        try:
            _send_alerts(given, settings, alerts, now_ms)
        except ClientError as err:
            # The exit code reports them anyway: missing records matter most.
            why = str(err).rstrip(".")
            print(
                f"kbroker-audit: cannot write alerts to {given.alert_topic}: {why}. Use another "
                "topic with --alert-topic, or '' for none",
                file=sys.stderr,
                flush=True,
            )
    return EXIT_ALERT if alerts else 0


def _references(
    given: argparse.Namespace, topics: Iterable[str], tiers: Mapping[str, Container[str]]
) -> dict[str, str]:
    """The reference counts of each topic, for the other tiers. Raises LoadError."""
    reference = given.reference or (PRODUCER_TIER if PRODUCER_TIER in tiers else BROKER_TIER)
    if reference not in tiers:
        raise LoadError(
            f"there are no counts of the reference tier {reference}; there are "
            f"{', '.join(tiers) or 'none'}. Choose one with --reference, or use --recount"
        )
    references = dict.fromkeys(topics, reference)
    if given.reference is None and BROKER_TIER in tiers:
        # Producers of other topics do not count for this one.
        references |= {one: BROKER_TIER for one in topics if one not in tiers[reference]}
    return references


def _tell_alone(references: Mapping[str, str], tiers: Mapping[str, Container[str]]) -> None:
    """A line on standard error if nothing is compared with the reference, so that an empty report
    is not mistaken for one without a loss.
    """
    compared = any(
        topic in about and tier != reference
        for topic, reference in references.items()
        for tier, about in tiers.items()
    )
    if not compared:
        print(
            f"kbroker-audit: nothing to compare: there are only counts of {', '.join(tiers)}. "
            "Use --load or --recount, or have applications count",
            file=sys.stderr,
            flush=True,
        )


def _loaded(given: argparse.Namespace, place: str, runner: Runner, bucket_ms: int) -> list[Count]:
    """The counts of ``--load``, by the kind of its argument. Raises LoadError."""
    if names_database(place):
        from kbroker.spark.audit import databases

        return databases.loaded(place, given.name, bucket_ms=bucket_ms, from_ms=given.from_ms)
    from kbroker.spark.audit import loads

    destination = folder(sink_of(place), place)
    destination.require()
    return loads.loaded(destination, runner, bucket_ms=bucket_ms, from_ms=given.from_ms)


def _gathered(
    given: argparse.Namespace,
    source: BrokerSource,
    topics: set[str],
    runner: Runner,
    bucket_ms: int,
    now_ms: int,
) -> tuple[list[Count], dict[str, set[str]]]:
    """All counts, and the tiers to compare with their topics, including tiers without counts:
    applications have announced theirs.
    """
    counts: list[Count] = []
    tiers: dict[str, set[str]] = {}
    if given.audit_topic:
        messages = BrokerSource(
            source.bootstrap, source.settings, pattern=_exactly(given.audit_topic)
        )
        totals = gather.told(messages, topics, runner, bucket_ms, given.from_ms)
        counts += totals.counts
        for one in sorted(totals.counts, key=lambda each: each.tier):
            tiers.setdefault(one.tier, set()).add(one.topic)
        _tell_left_out(given, totals, bucket_ms)
    for place in given.load:
        counts += _loaded(given, place, runner, bucket_ms)
        tiers.setdefault(gather.LOAD_TIER, set()).update(topics)
    for tier, bootstrap in given.recount:
        cluster = BrokerSource(
            bootstrap or source.bootstrap, source.settings, source.topics, source.pattern
        )
        counts += gather.recount(
            cluster, runner, tier, bucket_ms=bucket_ms, from_ms=given.from_ms, now_ms=now_ms
        )
        tiers.setdefault(tier, set()).update(topics)
    return counts, tiers


def _tell_left_out(given: argparse.Namespace, totals: Told, bucket_ms: int) -> None:
    """Report the messages of the audit topic that are in no count. Raises LoadError."""
    if totals.bad:
        left_out = f"{counted(totals.bad, 'message')} of {given.audit_topic} left out"
        print(f"kbroker-audit: {left_out}: no counts of records", file=sys.stderr)
    _require_reference(given, totals, bucket_ms)
    if totals.misfits:
        left_out = f"{counted(len(totals.misfits), 'message')} of {given.audit_topic} left out"
        print(
            f"kbroker-audit: {left_out}: {_misfitting(totals.misfits, bucket_ms)}", file=sys.stderr
        )


def _misfitting(misfits: Iterable[Misfit], bucket_ms: int) -> str:
    """What is wrong with them, and which error is the most frequent."""
    kinds = Counter((one.tier, one.topic, one.size_ms, one.is_aligned) for one in misfits)
    ((tier, topic, size_ms, is_aligned), _) = kinds.most_common(1)[0]
    minutes = f"{size_ms / 60_000:g}"
    instead = f"; use --bucket-minutes {minutes} to count by those" if is_aligned else ""
    return (
        f"buckets that do not fit into {bucket_ms / 60_000:g}-minute buckets, such as the "
        f"{minutes}-minute buckets of tier {tier} for {topic}{instead}"
    )


def _require_reference(given: argparse.Namespace, totals: Told, bucket_ms: int) -> None:
    """Raises LoadError if no message of the reference fits: the report's buckets are wrong then,
    and another reference would hide missing records.
    """
    reference = given.reference or PRODUCER_TIER
    uncounted = [one for one in totals.misfits if one.tier == reference]
    if uncounted and not any(one.tier == reference for one in totals.counts):
        raise LoadError(
            f"the tier {reference} has reported only {_misfitting(uncounted, bucket_ms)}; or "
            "choose another tier with --reference"
        )


def _exactly(name: str) -> str:
    """A pattern that matches only this name: that the topic does not exist yet is no error."""
    import re

    return re.escape(name)


def _print(given: argparse.Namespace, lines: list[Line]) -> None:
    for one in lines:
        if given.json:
            print(json.dumps(asdict(one)))
            continue
        if one.state == "complete" and not given.all:
            continue
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(one.bucket_ms / 1000))
        share = "-" if one.completeness is None else f"{one.completeness:.4%}"
        lag = "-" if one.lag_ms is None else f"{one.lag_ms / 1000:,.0f} s"
        print(
            f"{one.topic} {when} {one.tier}: {one.state}, {one.count:,} of {one.expected:,} "
            f"({share}), lag {lag}"
        )
    if not given.json:
        for tier, reference in dict.fromkeys((one.tier, one.reference) for one in lines):
            of_tier = [o for o in lines if (o.tier, o.reference) == (tier, reference)]
            count, expected = sum(o.count for o in of_tier), sum(o.expected for o in of_tier)
            surplus = sum(one.state == SURPLUS for one in of_tier)
            wrong = sum(one.state != COMPLETE for one in of_tier) - surplus
            print(
                f"{tier}: {count:,} of {expected:,} that {reference} has, in "
                f"{counted(len(of_tier), 'bucket')}, {wrong:,} of them incomplete"
                + (f", {surplus:,} with a surplus" if surplus else ""),
                flush=True,
            )


def _send_alerts(
    given: argparse.Namespace,
    settings: dict[str, str],
    alerts: list[Line],
    now_ms: int,
) -> None:
    import pyarrow as pa

    from kbroker.client.batches.arrow import ArrowProducer
    from kbroker.spark.pool import borrowed

    values = [json.dumps(asdict(one) | {"time": now_ms}).encode() for one in alerts]
    rows = pa.record_batch(
        {
            "key": pa.array([one.topic.encode() for one in alerts], pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )
    with (
        borrowed(given.bootstrap, settings) as cluster,
        ArrowProducer(cluster, topic=given.alert_topic) as producer,
    ):
        producer.write(rows)


if __name__ == "__main__":
    # With spark-submit: with the signals of the installed command.
    from kbroker.commands import audit

    sys.exit(audit())
