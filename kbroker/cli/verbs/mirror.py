"""``kbroker mirror``: copies topics to another cluster, until it is stopped."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from typing import Any

from kbroker.cli.arguments import Action, CommandFailed, Exit, Usage
from kbroker.cli.connecting import add_connection, client_settings

_GROUP = "kbroker-mirror"
_EPILOG = """\
As kafka-mirror-maker (docs/mirror.md), for one source: nothing is lost, records of a key stay in
order, several with the same --group share the work, and new topics are copied, too.

examples:
  kbroker mirror orders --to backup:9092
  kbroker mirror 'shop.*,billing' -b london:9092 --to-config archive.properties --streams 2"""


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "topics", metavar="TOPICS", help="a regular expression for whole names, with , for |"
    )
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--to", metavar="HOST:PORT[,...]", help="brokers of the target")
    to.add_argument(
        "--to-config", metavar="FILE", help="a properties file with settings of the producer"
    )
    parser.add_argument("--exclude", metavar="TOPICS", help="topics that are not copied")
    parser.add_argument(
        "--group", default=_GROUP, metavar="NAME", help=f"the consumer group ({_GROUP})"
    )
    parser.add_argument(
        "--only-new", action="store_true", help="begin at the end of topics that exist"
    )
    parser.add_argument(
        "--streams", type=_count, default=1, metavar="N", help="consumers, a thread each (1)"
    )
    parser.add_argument(
        "--keep-partitions",
        action="store_true",
        help="records keep the number of their partition, where the target has it",
    )
    parser.add_argument(
        "--report",
        type=_count,
        default=10,
        metavar="SECONDS",
        help="time between lines about progress (10)",
    )
    add_connection(parser)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _mirror(options: argparse.Namespace) -> None:
    from kbroker.cli.kafka.mirror_maker import counted, progress
    from kbroker.client.errors import ClientError, SettingRefused
    from kbroker.client.mirror.mirror_maker import MirrorMaker, topic_pattern
    from kbroker.client.mirror.stream import MirrorPlan

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    logging.getLogger("kbroker.client.retry").setLevel(logging.ERROR)
    try:
        plan = MirrorPlan(
            topics=topic_pattern(options.topics, options.exclude),
            commit_s=5.0,
            keep_partitions=options.keep_partitions,
        )
        mirror = MirrorMaker(
            [_source(options)],
            _target(options),
            plan,
            streams=options.streams,
            report_s=float(options.report),
            report=progress(),
        )
    except SettingRefused as error:
        raise Usage(str(error)) from error
    except ClientError as error:
        raise CommandFailed(str(error)) from error

    def on_signal(number: int, frame: Any) -> None:
        mirror.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    fine = mirror.run()
    print(f"mirrored {counted(mirror.counts())}", file=sys.stderr)
    if not fine:
        raise Exit(1)


def _source(options: argparse.Namespace) -> dict[str, Any]:
    from kbroker.cli.kafka.client_options import known_only
    from kbroker.client.consumer.consumer_settings import SETTINGS

    return {
        "auto.offset.reset": "latest" if options.only_new else "earliest",
        **known_only(client_settings(options), SETTINGS),
        "group.id": options.group,
    }


def _target(options: argparse.Namespace) -> dict[str, Any]:
    if options.to:
        return {"bootstrap.servers": options.to}
    from kbroker.cli.kafka.client_options import known_only
    from kbroker.client.producer.producer_settings import SETTINGS
    from kbroker.properties import PropertiesError, read_properties

    try:
        return dict(known_only(dict(read_properties(options.to_config)), SETTINGS))
    except OSError as error:
        raise Usage(f"--to-config {options.to_config}: {error.strerror}") from error
    except PropertiesError as error:
        raise Usage(f"--to-config {options.to_config}: {error}") from error


ACTION = Action("copy topics to another cluster, until it is stopped", _describe, _mirror, _EPILOG)
