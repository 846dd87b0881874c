"""``kafka-console-consumer``: records of topics on stdout."""

from __future__ import annotations

import random
import re
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.client_options import client_settings, known_only, log_to_stderr, renamed
from kbroker.cli.kafka.options import Given, WrongUse, flag, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed, pairs, properties_of
from kbroker.cli.kafka.zookeeper import ZOOKEEPER, registered
from kbroker.standard_output import OutputLost

if TYPE_CHECKING:
    from kbroker.cli.kafka.formatters import Formatter
    from kbroker.client.consumer.kafka_consumer import KafkaConsumer

_FORMATTER = "org.apache.kafka.tools.consumer.DefaultMessageFormatter"
_POLL_S, _POLL_RECORDS = 1.0, 500
_LONG_MAX = (1 << 63) - 1
_FORMATTER_TEXT = (
    "A setting of the formatter: print.timestamp, print.key, print.offset, print.epoch, "
    "print.partition, print.headers, print.value, key.separator, line.separator, "
    "headers.separator, null.literal, key.deserializer, value.deserializer, headers.deserializer; "
    "may be repeated."
)

OPTIONS = (
    valued("topic", "topic", "The topic."),
    valued("include", "Java regex (String)", "A regular expression for topics instead."),
    valued("whitelist", "Java regex (String)", "The same, as before Kafka 4."),
    valued("blacklist", "Java regex (String)", "All topics but those of it, as in 0.8."),
    valued("partition", "partition", "Only this partition, without a group.", kind=int),
    valued(
        "offset",
        "consume offset",
        "With --partition, where to begin: a number, earliest or latest.",
        default="latest",
    ),
    valued("consumer-property", "consumer_prop", "The same as --command-property, before 4.2."),
    valued("command-property", "consumer_prop", "A setting of the consumer; may be repeated."),
    valued("consumer.config", "config file", "The same as --command-config, before Kafka 4.2."),
    valued("command-config", "config file", "A file with settings of the consumer."),
    valued("formatter", "class", "What prints a record.", default=_FORMATTER),
    valued("property", "prop", "The same as --formatter-property, as before Kafka 4.2."),
    valued("formatter-property", "prop", _FORMATTER_TEXT),
    valued("formatter-config", "config file", "A file with settings of the formatter."),
    flag("from-beginning", "Begin at the first record where the group has no offset."),
    valued("max-messages", "num_messages", "How many records to print.", kind=int),
    valued(
        "timeout-ms",
        "timeout_ms",
        "End when there is no record for this time.",
        kind=int,
        long=True,
    ),
    flag("skip-message-on-error", "Go on after a record that cannot be printed."),
    BOOTSTRAP,
    ZOOKEEPER,
    valued("key-deserializer", "deserializer for keys", "The class that reads keys."),
    valued("value-deserializer", "deserializer for values", "The class that reads values."),
    flag("enable-systest-events", "Print shutdown_complete at the end."),
    valued(
        "isolation-level",
        "",
        "read_committed leaves out records of transactions that are not committed.",
        default="read_uncommitted",
    ),
    valued("group", "consumer group id", "The group; otherwise one of its own."),
    flag("delete-consumer-offsets", "Has no effect; 0.8 has it, too."),
    flag("new-consumer", "Has no effect; 0.9 has it, too."),
)


def _check(given: Given) -> str | None:
    """The regular expression for topics, None with ``--topic``."""
    named = [name for name in ("topic", "include", "whitelist", "blacklist") if name in given]
    if len(named) != 1:
        raise WrongUse("Exactly one of the following arguments is required: [topic], [include]")
    if "partition" in given:
        if "topic" not in given:
            raise WrongUse("The topic is required when partition is specified.")
        if given.count(("from-beginning", "offset")) == 2:
            raise WrongUse("Options from-beginning and offset cannot be specified together.")
    elif "offset" in given:
        raise WrongUse("The partition is required when offset is specified.")
    if "zookeeper" not in given:
        given.require("bootstrap-server")
    if named == ["topic"]:
        return None
    text = str(given.one(named[0]))
    pattern = f"(?!(?:{text})$).*" if named == ["blacklist"] else text
    try:
        re.compile(pattern)
    except re.error as error:
        raise ToolFailed(f"{text} is no regular expression: {error}") from error
    return pattern


def _run(given: Given) -> int:
    pattern = _check(given)
    removed = "is deprecated and will be removed in a future version."

    def one_of(old: str, new: str) -> str:
        return renamed(given, old, new, f"Option --{old} {removed} Use --{new} instead.")

    prop = one_of("consumer-property", "command-property")
    config = one_of("consumer.config", "command-config")
    settings, grouped = _settings(given, config, prop)
    if grouped and "partition" in given:
        raise WrongUse("Options group and partition cannot be specified together.")
    offset = _offset(given)
    shown = _formatter(given, one_of("property", "formatter-property"))
    sys.stdout.flush()
    from kbroker.client.consumer.consumer_settings import SETTINGS
    from kbroker.client.consumer.kafka_consumer import KafkaConsumer
    from kbroker.client.errors import ClientError, SettingRefused, WakeupError

    log_to_stderr()
    counter = _Counter(given.one("max-messages"))
    interrupted: list[int] = []
    try:
        settings["bootstrap.servers"] = _bootstrap(given)
        own = known_only(settings, SETTINGS) | {"bootstrap.servers": settings["bootstrap.servers"]}
        with KafkaConsumer(own) as consumer:
            _end_on_interrupt(consumer, interrupted)
            _place(consumer, given, pattern, offset)
            with suppress(WakeupError):
                _print_records(consumer, given, shown, counter, interrupted)
    except OutputLost:
        raise OutputLost("Unable to write to standard out, closing consumer.") from None
    except (SettingRefused, ClientError) as error:
        raise ToolFailed(str(error)) from error
    finally:
        print(f"Processed a total of {counter.count} messages", file=sys.stderr)
        if "enable-systest-events" in given:
            print("shutdown_complete")
    if interrupted:
        raise KeyboardInterrupt
    return 0


def _end_on_interrupt(consumer: KafkaConsumer, interrupted: list[int]) -> None:
    """Let Ctrl-C end the reading between two calls: what was printed is committed, and nothing
    else. A second one ends it at once.
    """

    def wake(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupted.append(number)
        consumer.wakeup()

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, wake)


def _bootstrap(given: Given) -> str:
    if "bootstrap-server" in given:
        return str(given.one("bootstrap-server"))
    return registered(given)


def _settings(given: Given, config: str, prop: str) -> tuple[dict[str, str], bool]:
    """And whether a group was given."""
    path = given.one(config)
    from_file = properties_of(path) if path else {}
    extra = pairs(given.all(prop))
    groups = [given.one("group"), from_file.get("group.id"), extra.get("group.id")]
    named = list(dict.fromkeys(group for group in groups if group is not None))
    if len(named) > 1:
        listed = ", ".join(f"'{group}'" for group in named)
        raise WrongUse(
            "The group ids provided in different places (directly using '--group', via "
            "'--consumer-property', or via '--consumer.config') do not match. Detected group ids: "
            f"{listed}"
        )
    settings = client_settings(given, config, prop)
    reset = settings.get("auto.offset.reset")
    if reset is not None and "from-beginning" in given and reset != "earliest":
        raise ToolFailed(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', "
            "please remove one option"
        )
    settings.setdefault("auto.offset.reset", "earliest" if "from-beginning" in given else "latest")
    settings.setdefault("client.id", "console-consumer")
    if "isolation-level" in given or "isolation.level" not in settings:
        settings["isolation.level"] = given.one("isolation-level")
    if named:
        settings["group.id"] = named[0]
    else:
        settings["group.id"] = f"console-consumer-{random.randrange(100_000)}"
        settings.setdefault("enable.auto.commit", "false")
    return settings, bool(named)


def _offset(given: Given) -> int | None:
    """Where to begin in a partition: a number, -2 for the first record, None for the end."""
    if "offset" not in given:
        return -2 if "from-beginning" in given else None
    text = str(given.one("offset"))
    if text.lower() in ("earliest", "latest"):
        return -2 if text.lower() == "earliest" else None
    if re.fullmatch(r"\+?[0-9]{1,19}", text) and int(text) <= _LONG_MAX:
        return int(text)
    raise WrongUse(
        f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', "
        "or a non-negative long."
    )


def _formatter(given: Given, prop: str) -> Formatter:
    from kbroker.cli.kafka.formatters import formatter

    path = given.one("formatter-config")
    settings = (properties_of(path) if path else {}) | pairs(given.all(prop))
    for field in ("key", "value"):
        if given.one(f"{field}-deserializer"):
            settings[f"{field}.deserializer"] = given.one(f"{field}-deserializer")
    name = given.one("formatter")
    try:
        return formatter(name, settings)
    except KeyError:
        raise WrongUse(str(name)) from None


def _place(consumer: KafkaConsumer, given: Given, pattern: str | None, offset: int | None) -> None:
    if pattern is not None:
        consumer.subscribe(pattern=pattern)
    elif "partition" not in given:
        consumer.subscribe([given.one("topic")])
    else:
        key = (str(given.one("topic")), int(given.one("partition")))
        consumer.assign([key])
        if offset is None:
            consumer.seek_to_end(key)
        elif offset < 0:
            consumer.seek_to_beginning(key)
        else:
            consumer.seek(key, offset)


class _Counter:
    def __init__(self, most: int | None) -> None:
        self.count = 0
        self._most = -1 if most is None else most

    def left(self) -> int:
        return _POLL_RECORDS if self._most == -1 else min(self._most - self.count, _POLL_RECORDS)


def _print_records(
    consumer: KafkaConsumer,
    given: Given,
    shown: Formatter,
    counter: _Counter,
    interrupted: list[int],
) -> None:
    timeout_ms = given.one("timeout-ms")
    silent_s = float("inf") if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000
    output: Any = sys.stdout.buffer
    ends_at = time.monotonic() + silent_s
    while counter.left() > 0 and not interrupted:
        wait_s = min(_POLL_S, max(ends_at - time.monotonic(), 0.0))
        records = consumer.poll(wait_s, counter.left())
        if not records:
            if time.monotonic() >= ends_at:
                return
            continue
        for record in records:
            counter.count += 1
            try:
                output.write(shown(record))
            except ValueError as error:
                if "skip-message-on-error" not in given:
                    raise ToolFailed(str(error)) from error
                print(f"ERROR {error}; skipping this message", file=sys.stderr)
        output.flush()
        ends_at = time.monotonic() + silent_s


TOOL = Tool(
    "This tool helps to read data from Kafka topics and outputs it to standard output.",
    OPTIONS,
    _run,
    usage_errors=True,
)
