"""``kafka-consumer-groups --reset-offsets``."""

from __future__ import annotations

import csv
import re
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, WrongUse
from kbroker.quantities import iso_duration_ms

if TYPE_CHECKING:
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.connections.cluster import Cluster, Topic

Offsets = dict["TopicPartition", int]
# BOUND: Jackson, which writes Kafka's CSV, looks into no longer text before it quotes it.
_PLAIN_MAX, _PLAIN_FROM = 24, "-"
_WITHOUT_ZONE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?")


def reset(given: Given, cluster: Cluster, groups: Iterable[str]) -> None:
    """Plan, and with ``--execute`` commit, the offsets of each group; print them."""
    from kbroker.cli.kafka.java_words import hash_order, string_hash

    plans: dict[str, Offsets] = {}
    for group in hash_order(groups, string_hash):
        plans[group] = _reset_group(given, cluster, group)
    if "export" in given:
        print(_exported(plans, single=len(given.all("group")) == 1))
    else:
        _print(plans)


def _reset_group(given: Given, cluster: Cluster, group: str) -> Offsets:
    from kbroker.cli.kafka.consumer_groups import print_error
    from kbroker.client.admin.groups import describe_group
    from kbroker.client.batches.offsets import commit
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode

    try:
        state = describe_group(cluster, group).state
    except RejectedError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        state = "Dead"
    if state not in ("Empty", "Dead"):
        print_error(
            f"Assignments can only be reset if the group '{group}' is inactive, but the current "
            f"state is {state}."
        )
        return {}
    offsets = _planned(given, cluster, group)
    if "execute" in given and "dry-run" not in given:
        commit(cluster, group, {key: (offset, "") for key, offset in offsets.items()})
    return offsets


# -- which partitions


def partitions_in(text: str) -> list[TopicPartition]:
    """Of ``topic:0,1``. Raises WrongUse."""
    topic, _, numbers = text.partition(":")
    if ":" in numbers or not numbers:
        raise WrongUse(f"Invalid topic arg '{text}', expected topic name and partitions")
    keys = []
    for number in numbers.split(","):
        if not number.isascii() or not number.isdecimal() or int(number) >= 1 << 31:
            raise WrongUse(f"Invalid partition '{number}' specified in topic arg '{text}''")
        keys.append((topic, int(number)))
    return keys


def _partitions(given: Given, cluster: Cluster, group: str) -> list[TopicPartition]:
    from kbroker.client.batches.offsets import committed

    if "all-topics" in given:
        return list(committed(cluster, group, stable=False))
    if "topic" not in given:
        if "from-file" not in given:
            raise WrongUse("One of the reset scopes should be defined: --all-topics, --topic.")
        return []
    texts = given.all("topic")
    keys = [key for text in texts if ":" in text for key in partitions_in(text)]
    names = list(dict.fromkeys(text for text in texts if ":" not in text))
    known = _known(cluster, names)
    return keys + [(name, number) for name in names for number in known[name].partitions]


def _known(cluster: Cluster, names: Iterable[str], wrapped: bool = False) -> Mapping[str, Topic]:
    """Raises RejectedError for a topic that does not exist. wrapped: in another exception."""
    from kbroker.cli.kafka.consumer_groups import GroupsToolError
    from kbroker.cli.kafka.java_words import java_message, java_text
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode

    wanted = set(names)
    known = cluster.topics(wanted)
    for name in wanted - set(known):
        error = RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
        if wrapped:
            raise GroupsToolError(f"java.util.concurrent.ExecutionException: {java_text(error)}")
        raise GroupsToolError(java_message(error))
    return known


def _check(cluster: Cluster, partitions: list[TopicPartition]) -> None:
    """All must exist and have a leader."""
    from kbroker.cli.kafka.consumer_groups import GroupsToolError

    known = _known(cluster, {topic for topic, _ in partitions}, wrapped=True)
    missing = [f"{t}-{n}" for t, n in partitions if n not in known[t].partitions]
    if missing:
        raise GroupsToolError(f'The partitions "{",".join(missing)}" do not exist')
    alone = [f"{t}-{n}" for t, n in partitions if known[t].partitions[n].leader is None]
    if alone:
        raise GroupsToolError(f'The partitions "{",".join(alone)}" have no leader')


# -- which offsets


def _planned(given: Given, cluster: Cluster, group: str) -> Offsets:
    from kbroker.client.batches.offsets import EARLIEST, LATEST, committed

    keys = _partitions(given, cluster, group)
    _check(cluster, keys)
    if "to-offset" in given:
        return _within(cluster, dict.fromkeys(keys, given.all("to-offset")[0]))
    if "to-earliest" in given:
        return _listed(cluster, keys, EARLIEST)
    if "to-latest" in given:
        return _listed(cluster, keys, LATEST)
    if "shift-by" in given:
        return _shifted(cluster, group, keys, given.one("shift-by"))
    if "to-datetime" in given:
        return _at(cluster, keys, time_ms(given.all("to-datetime")[0]))
    if "by-duration" in given:
        now_ms = time.time_ns() // 1_000_000
        return _at(cluster, keys, now_ms - duration_ms(given.one("by-duration")))
    if "from-file" in given:
        return _from_file(given, cluster, group)
    if "to-current" in given:
        now = committed(cluster, group, stable=False)
        ends = _listed(cluster, [key for key in keys if key not in now], LATEST)
        return {key: now[key].offset if key in now else ends[key] for key in keys}
    listed = ", ".join(
        f"[{name}]"
        for name in (
            "to-offset",
            "shift-by",
            "to-datetime",
            "by-duration",
            "to-earliest",
            "to-latest",
            "to-current",
            "from-file",
        )
    )
    raise WrongUse(f"Option '[reset-offsets]' requires one of the following scenarios: [{listed}]")


def _listed(cluster: Cluster, keys: Iterable[TopicPartition], time_ms: int) -> Offsets:
    from kbroker.client.batches.offsets import list_offsets

    rows = list_offsets(cluster, dict.fromkeys(keys, time_ms))
    return {key: row.offset for key, row in rows.items()}


def _within(cluster: Cluster, wanted: Offsets) -> Offsets:
    """Moved to the first or the last offset of the partition."""
    from kbroker.client.batches.offsets import EARLIEST, LATEST

    starts, ends = _listed(cluster, wanted, EARLIEST), _listed(cluster, wanted, LATEST)
    for (topic, number), offset in wanted.items():
        to = min(max(offset, starts[topic, number]), ends[topic, number])
        if to != offset:
            side = "higher than latest" if to < offset else "lower than earliest"
            print(
                f"New offset ({offset}) is {side} offset for topic partition {topic}-{number}. "
                f"Value will be set to {to}",
                file=sys.stderr,
            )
    return {key: min(max(offset, starts[key]), ends[key]) for key, offset in wanted.items()}


def _shifted(cluster: Cluster, group: str, keys: list[TopicPartition], by: int) -> Offsets:
    from kbroker.client.batches.offsets import committed

    now = committed(cluster, group, stable=False)
    for topic, number in keys:
        if (topic, number) not in now:
            raise WrongUse(
                f"Cannot shift offset for partition {topic}-{number} since there is no current "
                "committed offset"
            )
    return _within(cluster, {key: now[key].offset + by for key in keys})


def _at(cluster: Cluster, keys: list[TopicPartition], time_ms: int) -> Offsets:
    from kbroker.cli.kafka.java_words import hash_order, partition_hash
    from kbroker.client.batches.offsets import LATEST

    offsets = _listed(cluster, keys, time_ms)
    late = hash_order([key for key in keys if offsets[key] < 0], partition_hash)
    for topic, number in late:
        print(
            f"\nWarn: Partition {number} from topic {topic} is empty. Falling back to latest known "
            "offset."
        )
    return offsets | _listed(cluster, late, LATEST)


def time_ms(text: str) -> int:
    """``2026-11-27T08:00:00.000``, in UTC if it has no zone. Raises GroupsToolError."""
    from kbroker.cli.kafka.consumer_groups import GroupsToolError

    try:
        if _WITHOUT_ZONE.fullmatch(text):
            moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
        else:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                raise ValueError(text)
    except ValueError:
        raise GroupsToolError(f'java.text.ParseException: Unparseable date: "{text}"') from None
    return round(moment.timestamp() * 1000)


def duration_ms(text: str) -> int:
    """ISO 8601, as Java reads it. Raises GroupsToolError."""
    from kbroker.cli.kafka.consumer_groups import GroupsToolError

    duration = iso_duration_ms(text)
    if duration is None:
        raise GroupsToolError("Text cannot be parsed to a Duration")
    return duration


# -- files and output


def _from_file(given: Given, cluster: Cluster, group: str) -> Offsets:
    from kbroker.cli.kafka.consumer_groups import GroupsToolError, print_error

    path = given.all("from-file")[0]
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError) as error:
        raise GroupsToolError(f"{path}: {error}") from error
    single = len(given.all("group")) == 1 and bool(rows) and len(rows[0]) == 3
    plans: dict[str, Offsets] = {}
    for row in rows:
        name, fields = (group, row) if single else (row[0], row[1:])
        try:
            topic, number, offset = fields
            plans.setdefault(name, {})[topic, int(number)] = int(offset)
        except ValueError as error:
            raise GroupsToolError(
                f"{path}: {','.join(row)!r} is no offset of a partition"
            ) from error
    if group not in plans:
        print_error(f"No reset plan for group {group} found")
        return {}
    return _within(cluster, plans[group])


def _ordered(offsets: Offsets) -> list[TopicPartition]:
    from kbroker.cli.kafka.java_words import hash_order, partition_hash

    return hash_order(offsets, partition_hash)


def _print(plans: Mapping[str, Offsets]) -> None:
    group_width = max([15, *map(len, plans)])
    topic_width = max([15, *(len(topic) for rows in plans.values() for topic, _ in rows)])
    lines = [("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")] if plans else []
    lines += [
        (group, topic, str(number), str(offsets[topic, number]))
        for group, offsets in plans.items()
        for topic, number in _ordered(offsets)
    ]
    for group, topic, number, offset in lines:
        print(f"\n{group:<{group_width}} {topic:<{topic_width}} {number:<10} {offset}", end="")
    print()


def _exported(plans: Mapping[str, Offsets], single: bool) -> str:
    lines = []
    for group, offsets in plans.items():
        for topic, number in _ordered(offsets):
            cells = [_quoted(topic), str(number), str(offsets[topic, number])]
            lines.append(",".join(cells if single else [_quoted(group), *cells]) + "\n")
    return "".join(lines)


def _quoted(text: str) -> str:
    if len(text) <= _PLAIN_MAX and all(char >= _PLAIN_FROM for char in text):
        return text
    return '"' + text.replace('"', '""') + '"'
