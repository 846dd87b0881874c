"""``kafka-consumer-perf-test``: how many records a consumer reads a second."""

from __future__ import annotations

import random
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.cli.kafka.client_options import client_settings, known_only, log_to_stderr
from kbroker.cli.kafka.options import Given, Option, WrongUse, flag, valued
from kbroker.cli.kafka.performance import print_metrics
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed
from kbroker.cli.kafka.zookeeper import ZOOKEEPER, registered

if TYPE_CHECKING:
    from kbroker.client.consumer.kafka_consumer import KafkaConsumer

_MIB = 1 << 20
_POLL_S = 0.1
_DATES = "yyyy-MM-dd HH:mm:ss:SSS"
_ADDED = ", rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"


def _number(name: str, argument: str, text: str, default: int | None, long: bool = True) -> Option:
    default_text = None if default is None else str(default)
    return valued(name, argument, text, kind=int, long=long, default=default_text)


OPTIONS = (
    BOOTSTRAP,
    valued("broker-list", "broker-list", "The same, as before Kafka 2.5."),
    ZOOKEEPER._replace(text="The ZooKeeper of the brokers, host:port/chroot, instead."),
    valued("topic", "topic", "The topic."),
    valued("include", "Java regex (String)", "A regular expression for topics instead."),
    valued("group", "gid", "The group; otherwise one of its own."),
    _number("fetch-size", "size", "Bytes of a partition in one response.", 1 << 20, long=False),
    valued("command-property", "prop1=val1", "A setting of the consumer; may be repeated."),
    flag("from-latest", "Where the group has no offset, begin at the end."),
    _number("socket-buffer-size", "size", "Of the socket (receive.buffer.bytes).", 2 << 20, False),
    valued("consumer.config", "config file", "The same as --command-config, before Kafka 4.2."),
    valued("command-config", "config file", "A file with settings of the consumer."),
    flag("print-metrics", "Print metrics at the end."),
    flag("show-detailed-stats", "Print a line in each interval instead of one at the end."),
    valued("timeout", "milliseconds", "End when there is no record for this time.", kind=int,
           long=True, default="10000", optional=True),
    _number("messages", "count", "The same as --num-records, before Kafka 4.2.", None),
    _number("num-records", "count", "How many records; required.", None),
    _number("reporting-interval", "interval_ms", "Milliseconds between lines.", 5000),
    valued("date-format", "date format", "Of times, as in SimpleDateFormat.", default=_DATES),
    flag("hide-header", "Do not print the names of columns."),
    *(
        valued(name, "count", "Has no effect; it had none since Kafka 2.0.")
        for name in ("threads", "num-fetch-threads")
    ),
)  # fmt: skip


def _check(given: Given) -> int:
    """How many records. Raises WrongUse."""
    if not given.count(("bootstrap-server", "broker-list", "zookeeper")):
        given.require("bootstrap-server")
    if given.count(("messages", "num-records")) != 1:
        raise WrongUse(
            "Exactly one of the following arguments is required: [num-records], [messages]"
        )
    if given.count(("topic", "include")) != 1:
        raise WrongUse("Exactly one of the following arguments is required: [topic], [include]")
    if given.count(("consumer.config", "command-config")) == 2:
        raise WrongUse(
            "Options --command-config and --consumer.config cannot be specified together."
        )
    if "messages" in given:
        print("Warning: --messages is deprecated. Use --num-records instead.")
    if "consumer.config" in given:
        print("Warning: --consumer.config is deprecated. Use --command-config instead.")
    count: int = given.one("messages" if "messages" in given else "num-records")
    return count


def _run(given: Given) -> int:
    wanted = _check(given)
    form = _date_format(given.one("date-format"))
    detailed = "show-detailed-stats" in given
    if "hide-header" not in given:
        first = "time, threadId" if detailed else "start.time, end.time"
        print(f"{first}, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec{_ADDED}")
    if given.one("reporting-interval") <= 0:
        raise ToolFailed("Reporting interval must be greater than 0.")
    from kbroker.client.consumer.consumer_settings import SETTINGS
    from kbroker.client.consumer.kafka_consumer import KafkaConsumer
    from kbroker.client.errors import ClientError, SettingRefused

    log_to_stderr()
    try:
        with KafkaConsumer(known_only(_settings(given), SETTINGS)) as consumer:
            reading = _MeasuredReading(given, wanted, form)
            reading.run(consumer)
            metrics = consumer.metrics() if "print-metrics" in given else None
    except (SettingRefused, ClientError) as error:
        raise ToolFailed(str(error)) from error
    if not detailed:
        reading.print_total()
    if metrics is not None:
        print_metrics(metrics)
    return 0


def _settings(given: Given) -> dict[str, str]:
    config = "consumer.config" if "consumer.config" in given else "command-config"
    settings = client_settings(given, config, "command-property")
    group = given.one("group") or f"perf-consumer-{random.randrange(100_000)}"
    settings.setdefault("client.id", "perf-consumer-client")
    if "socket-buffer-size" in given:
        settings["receive.buffer.bytes"] = str(given.one("socket-buffer-size"))
    return settings | {
        "bootstrap.servers": _bootstrap(given),
        "group.id": group,
        "max.partition.fetch.bytes": str(given.one("fetch-size")),
        "auto.offset.reset": "latest" if "from-latest" in given else "earliest",
        "check.crcs": "false",
    }


def _bootstrap(given: Given) -> str:
    if "zookeeper" in given:
        return registered(given)
    return str(given.one("bootstrap-server") or given.one("broker-list"))


class _Mark(NamedTuple):
    """A moment, and what had been read by then."""

    at_ms: int
    records: int
    size: int


class _MeasuredReading:
    """Reads, and prints what it measures."""

    def __init__(self, given: Given, wanted: int, form: list[str]) -> None:
        self._topic, self._pattern = given.one("topic"), given.one("include")
        self._wanted = wanted
        self._timeout_ms = given.one("timeout")
        self._interval_ms = given.one("reporting-interval")
        self._detailed = "show-detailed-stats" in given
        self._form = form
        self._joined_ms = self._joined_of_round_ms = 0
        self._began = self._joining_since = self._ended = _now_ms()
        self._records = self._bytes = 0

    # -- told by the consumer

    def on_partitions_revoked(self, partitions: list[Any]) -> None:
        """The group rebalances from now on."""
        self._joining_since = _now_ms()

    def on_partitions_assigned(self, partitions: list[Any]) -> None:
        """Until now."""
        took = _now_ms() - self._joining_since
        self._joined_ms += took
        self._joined_of_round_ms += took

    # -- reading

    def run(self, consumer: KafkaConsumer) -> None:
        """Until there are enough, or none for too long."""
        listener: Any = self
        try:
            if self._topic is not None:
                consumer.subscribe([self._topic], listener=listener)
            else:
                consumer.subscribe(pattern=self._pattern, listener=listener)
        except re.error as error:
            raise ToolFailed(f"{self._pattern} is no regular expression: {error}") from error
        last = now = self._began
        mark = _Mark(now, 0, 0)
        while self._records < self._wanted and now - last <= self._timeout_ms:
            batches = consumer.poll_columns(_POLL_S)
            now = _now_ms()
            for columns in batches:
                last = now
                self._records += len(columns.values)
                self._bytes += sum(map(len, filter(None, columns.values)))
                self._bytes += sum(map(len, filter(None, columns.keys)))
            if batches and now - mark.at_ms >= self._interval_ms:
                if self._detailed:
                    self._print_progress(mark, now)
                self._joined_of_round_ms = 0
                mark = _Mark(now, self._records, self._bytes)
        self._ended = _now_ms()
        if self._records < self._wanted:
            print(
                "WARNING: Exiting before consuming the expected number of records: timeout "
                f"({self._timeout_ms} ms) exceeded. You can use the --timeout option to increase "
                "the timeout."
            )

    def _print_progress(self, mark: _Mark, now: int) -> None:
        elapsed_s = max(now - mark.at_ms, 1) / 1000
        fetching_s = (now - mark.at_ms - self._joined_of_round_ms) / 1000
        mib, records = (self._bytes - mark.size) / _MIB, self._records - mark.records
        rates = (0.0, 0.0) if fetching_s <= 0 else (mib / fetching_s, records / fetching_s)
        print(
            f"{_shown(now, self._form)}, 0, {self._bytes / _MIB:.4f}, {mib / elapsed_s:.4f}, "
            f"{self._records}, {records / elapsed_s:.4f}, {self._joined_of_round_ms}, "
            f"{int(fetching_s * 1000)}, {rates[0]:.4f}, {rates[1]:.4f}"
        )

    def print_total(self) -> None:
        """The line at the end."""
        elapsed_ms = max(self._ended - self._began, 1)
        fetching_ms = elapsed_ms - self._joined_ms
        mib, fetching_s = self._bytes / _MIB, max(fetching_ms, 1) / 1000
        print(
            f"{_shown(self._began, self._form)}, {_shown(self._ended, self._form)}, {mib:.4f}, "
            f"{mib * 1000 / elapsed_ms:.4f}, {self._records}, "
            f"{self._records * 1000 / elapsed_ms:.4f}, {self._joined_ms}, {fetching_ms}, "
            f"{mib / fetching_s:.4f}, {self._records / fetching_s:.4f}"
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- dates

_DIRECTIVES = {"y": "%Y", "M": "%m", "d": "%d", "H": "%H", "m": "%M", "s": "%S", "D": "%j"}


def _date_format(text: str) -> list[str]:
    """In parts: those of strftime, and one or more S for milliseconds. Raises ToolFailed."""
    parts = []
    for match in re.finditer(r"'([^']*)'|([A-Za-z])\2*|[^A-Za-z']+", text):
        word, letter = match[0], match[2]
        if letter is None:
            parts.append((match[1] or "'" if word.startswith("'") else word).replace("%", "%%"))
        elif letter == "S":
            parts.append(word)
        elif word in ("MMM", "MMMM", "E", "EEE", "EEEE", "a", "yy", "hh", "Z"):
            names = {"MMM": "%b", "MMMM": "%B", "EEEE": "%A", "a": "%p", "yy": "%y", "hh": "%I",
                     "Z": "%z"}  # fmt: skip
            parts.append(names.get(word, "%a"))
        elif letter in _DIRECTIVES:
            parts.append(_DIRECTIVES[letter])
        else:
            raise ToolFailed(f"Illegal pattern character '{letter}'")
    return parts


def _shown(at_ms: int, form: list[str]) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000).astimezone()
    return "".join(
        f"{at_ms % 1000:0{len(part)}}" if part.strip("S") == "" else moment.strftime(part)
        for part in form
    )


TOOL = Tool(
    "This tool is used to verify the consumer performance.", OPTIONS, _run, usage_errors=True
)
