"""``kafka-mirror-maker``: copies topics of one or several clusters to another."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.client_options import known_only
from kbroker.cli.kafka.options import Given, WrongUse, flag, valued
from kbroker.cli.kafka.running import Tool, ToolFailed, properties_of

if TYPE_CHECKING:
    from kbroker.client.mirror.mirror_maker import MirrorMaker
    from kbroker.client.mirror.stream import MirrorCounts

_MIB = 1 << 20
# COMPAT: Java's exit(-1); and what a JVM ends with after a signal.
_ABNORMAL, _SIGNALLED = 255, 128
_CALL = "a function of a record that returns records, or a class with handle(record)"

OPTIONS = (
    valued(
        "consumer.config",
        "config file",
        "Settings of the consumers of a source, with group.id; may be repeated, for several "
        "sources.",
    ),
    valued("producer.config", "config file", "Settings of the producers for the target."),
    valued("whitelist", "Java regex (String)", "The topics to copy; a comma is a |, * is all."),
    valued("include", "Java regex (String)", "The same."),
    valued("blacklist", "Java regex (String)", "All topics but these, or of --whitelist."),
    valued("num.streams", "Number of threads", "Consumers of each source.", kind=int, default="1"),
    valued("num.producers", "Number of producers", "As in 0.8: producers.", kind=int, default="1"),
    valued("queue.size", "Queue size in terms of number of messages", "Has no effect.", kind=int),
    valued(
        "offset.commit.interval.ms",
        "offset commit interval in millisecond",
        "Time between commits of what is acknowledged.",
        kind=int,
        default="60000",
    ),
    valued(
        "abort.on.send.failure",
        "Stop the entire mirror maker when a send failure occurs",
        "false: a record that cannot be written is dropped, and counted.",
        default="true",
    ),
    valued("message.handler", "dotted path", f"What makes of records others: {_CALL}."),
    valued("message.handler.args", "Arguments", "Handed to the class of --message.handler."),
    valued(
        "consumer.rebalance.listener",
        "dotted path",
        "A class with on_partitions_assigned(partitions) and on_partitions_revoked(partitions).",
    ),
    valued("rebalance.listener.args", "Arguments", "Handed to the class of the listener."),
    flag("new.consumer", "Has no effect: there is no other."),
    flag("keep.partitions", "Records keep the number of their partition (kbroker's own option)."),
    valued(
        "report.interval.ms",
        "interval in milliseconds",
        "Time between lines on stderr about progress and lag (kbroker's own option); 0: none.",
        kind=int,
        default="0",
    ),
)


def _run(given: Given) -> int:
    sources, target = _configurations(given)
    pattern = {name: given.one(name) for name in ("whitelist", "include", "blacklist")}
    wanted = pattern["whitelist"] or pattern["include"]
    if wanted is None and pattern["blacklist"] is None:
        print("whitelist must be specified", file=sys.stderr)
        return 1
    from kbroker.client.errors import ClientError
    from kbroker.client.mirror.mirror_maker import MirrorMaker, topic_pattern
    from kbroker.client.mirror.plugins import message_handler, rebalance_listener
    from kbroker.client.mirror.stream import MirrorPlan

    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    # The mirror says itself who cannot be reached.
    logging.getLogger("kbroker.client.retry").setLevel(logging.ERROR)
    # A dotted path may be that of a module where the tool was started, as with `python -m`.
    sys.path.insert(0, "")
    handler, listener = given.one("message.handler"), given.one("consumer.rebalance.listener")
    try:
        plan = MirrorPlan(
            topics=topic_pattern(wanted or "*", pattern["blacklist"]),
            commit_s=_at_least(given, "offset.commit.interval.ms", 1) / 1000,
            abort_on_send_failure=str(given.one("abort.on.send.failure")).lower() == "true",
            handler=handler and message_handler(handler, given.one("message.handler.args")),
            listener=listener
            and rebalance_listener(listener, given.one("rebalance.listener.args")),
            keep_partitions="keep.partitions" in given,
        )
        mirror = MirrorMaker(
            sources,
            target,
            plan,
            streams=_at_least(given, "num.streams", 1),
            producers=_at_least(given, "num.producers", 1),
            report_s=_at_least(given, "report.interval.ms", 0) / 1000,
            report=progress(),
        )
    except ClientError as error:
        raise ToolFailed(f"Exception when starting mirror maker. {error}") from error
    return _mirror(mirror)


def _mirror(mirror: MirrorMaker) -> int:
    caught: list[int] = []

    def on_signal(number: int, frame: Any) -> None:
        caught.append(number)
        mirror.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    fine = mirror.run()
    print(f"mirrored {counted(mirror.counts())}", file=sys.stderr)
    if not fine:
        print(
            "Mirror maker thread exited abnormally, stopping the whole mirror maker.",
            file=sys.stderr,
        )
        return _ABNORMAL
    return _SIGNALLED + caught[0] if caught else 0


def _configurations(given: Given) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    given.require("consumer.config", "producer.config")
    from kbroker.client.consumer import consumer_settings
    from kbroker.client.producer import producer_settings

    sources = [
        _client(properties_of(path), consumer_settings.SETTINGS)
        for path in given.all("consumer.config")
    ]
    target = _client(properties_of(given.one("producer.config")), producer_settings.SETTINGS)
    return sources, target


def _client(pairs: dict[str, str], rows: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of this client, from a file that may be one of 0.8."""
    settings = dict(pairs)
    if "bootstrap.servers" not in settings:
        if "metadata.broker.list" in settings:
            settings["bootstrap.servers"] = settings["metadata.broker.list"]
        elif "zookeeper.connect" in settings:
            from kbroker.client.zookeeper.registered_brokers import registered_brokers

            settings["bootstrap.servers"] = ",".join(
                registered_brokers(settings["zookeeper.connect"])
            )
    old = {"smallest": "earliest", "largest": "latest"}
    reset = settings.get("auto.offset.reset", "")
    if reset in old:
        settings["auto.offset.reset"] = old[reset]
    return dict(known_only(settings, rows))


def _at_least(given: Given, option: str, least: int) -> int:
    value = int(given.one(option))
    if value < least:
        raise WrongUse(f"{option} must be at least {least}")
    return value


def progress() -> Any:
    """What prints a line about the counts, with the rates since the last one."""
    before = [(0.0, 0, 0)]

    def report(counts: MirrorCounts, seconds: float) -> None:
        at, records, size = before[0]
        before[0] = (seconds, counts.records, counts.bytes)
        passed = max(seconds - at, 1e-3)
        print(
            f"mirrored {counted(counts)}, "
            f"{(counts.records - records) / passed:,.0f} records/s, "
            f"{(counts.bytes - size) / passed / _MIB:,.2f} MB/s",
            file=sys.stderr,
            flush=True,
        )

    return report


def counted(counts: MirrorCounts) -> str:
    """The counts in words."""
    held = f", the target takes nothing for {counts.held_s:.0f} s now" if counts.held_s else ""
    return (
        f"{counts.records:,} records ({counts.bytes / _MIB:,.1f} MB, {counts.whole:,} records in "
        f"whole batches), {counts.dropped:,} dropped, lag {counts.lag:,}{held}"
    )


TOOL = Tool(
    "This tool helps to continuously copy data between two Kafka clusters.",
    OPTIONS,
    _run,
    usage_errors=True,
)
