"""Consumer groups: members, lag in records and seconds, offsets reset and groups deleted."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbroker.client.admin.groups import (
    GroupState,
    ListedGroup,
    Progress,
    by_member,
    delete_groups,
    describe_group,
    list_groups,
    offsets_of_groups,
    progress,
)
from kbroker.client.admin.offset_resets import (
    EARLIEST,
    LATEST,
    WITH_VALUE,
    members_of,
    new_offsets,
)
from kbroker.client.admin.rights import Rights, rights_on_group, sees_all_groups, sees_all_topics
from kbroker.client.admin.topics import describe_topics
from kbroker.client.batches.fetch import RangeFetch
from kbroker.client.batches.offsets import (
    TopicPartition,
    commit,
    committed,
    ends_of_existing,
)
from kbroker.client.batches.topic_reader import records_of
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, RejectedError
from kbroker.console.answers import (
    Deleted,
    GroupDescription,
    GroupLags,
    Groups,
    ResetOffsets,
)
from kbroker.console.operation import (
    FLAG,
    INTEGER,
    INTEGERS,
    LONG_MAX,
    TEXT,
    CheckedRequest,
    Operation,
    Parameter,
    page_of,
    paging,
)
from kbroker.console.problems import BadRequest, Problem, check_partition
from kbroker.errors import ErrorCode
from kbroker.wording import counted

# BOUND: partitions whose lag in seconds is looked up: each takes a fetch of one batch; and the
# seconds that all of them may take.
SECONDS_MAX = 100
SECONDS_S = 1.5
_FETCH_BYTES = 4096
# BOUND: groups whose lag is looked up to sort them; the lag of others is unknown.
SORTED_MAX = 1_000
ID, LAG = "id", "lag"

GROUP = Parameter("group", TEXT, "Its id.", required=True, length_min=1, length_max=1000)


def _list(asked: CheckedRequest) -> Groups:
    values = asked.values
    groups = [row for row in list_groups(asked.cluster) if values["search"] in row.group]
    if values["sort"] == LAG:
        lags = _lags(asked, groups[:SORTED_MAX])
        groups.sort(key=lambda row: (-lags.get(row.group, -1), row.group))
    page, after = page_of(groups, values, lambda row: row.group)
    if values["sort"] != LAG:
        lags = _lags(asked, page)
    return {
        "total": len(groups),
        "groups": [
            {
                "group": row.group,
                "kind": row.kind,
                "state": row.state,
                "protocol": row.protocol,
                "coordinator": row.coordinator,
                "lag": lags.get(row.group),
            }
            for row in page
        ],
        "sees_all": None if groups or values["search"] else sees_all_groups(asked.cluster),
        "next_cursor": after,
    }


def _lags(asked: CheckedRequest, groups: Sequence[ListedGroup]) -> dict[str, int]:
    """The lag in records of each group; groups of which nobody tells it are left out. What this
    broker knows by itself it says to who may see all topics; brokers are asked for the rest, which
    takes a look at each partition.
    """
    known: Mapping[str, int] = {}
    if groups and sees_all_topics(asked.cluster):
        known = asked.broker.exact_lags()
    rest = [row for row in groups if row.group not in known]
    offsets = offsets_of_groups(asked.cluster, rest)
    keys = {key for rows in offsets.values() for key in rows}
    ends = ends_of_existing(asked.cluster, list(keys))
    return dict(known) | {
        group: sum(max(ends[key] - at, 0) for key, at in rows.items() if key in ends)
        for group, rows in offsets.items()
    }


def _describe(asked: CheckedRequest) -> GroupDescription:
    name = asked.values["group"]
    state = _state(asked.cluster, name)
    holders = {} if state is None else by_member(state)
    rows = progress(asked.cluster, name, holders)
    if state is None and not rows:
        raise RejectedError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name[:200]}")
    seconds = _seconds_behind(asked.cluster, rows)
    return {
        "group": name,
        "kind": state and state.kind,
        "state": state and state.state,
        "assignor": state and state.assignor,
        "coordinator": state and state.coordinator,
        "epoch": state and state.epoch,
        "rights": _rights(asked.cluster, name),
        "members": [
            {
                "member": row.member,
                "instance": row.instance,
                "client": row.client,
                "host": row.host,
                "partitions": [{"topic": t, "partition": n} for t, n in row.partitions],
            }
            for row in (state.members if state else ())
        ],
        "lag": sum(row.lag for row in rows if row.lag is not None),
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "offset": row.offset,
                "start": row.start,
                "end": row.end,
                "lag": row.lag,
                "seconds": seconds.get((row.topic, row.partition)),
                "member": _member(holders, row),
            }
            for row in rows
        ],
    }


def _rights(cluster: Cluster, group: str) -> Rights:
    try:
        return rights_on_group(cluster, group)
    except ClientError:
        return None


def _lags_over_time(asked: CheckedRequest) -> GroupLags:
    """Of the topics that the user may see. partial: some partitions have no replica on this broker,
    whose lag it does not know, and the console has not asked for it yet.
    """
    name = asked.values["group"]
    rows = committed(asked.cluster, name, stable=False)
    times, by_topic = asked.broker.lags(name)
    own = asked.broker.broker_id
    seen = asked.cluster.topics({topic for topic, _ in rows})
    topics = by_topic.keys() & seen.keys()
    partial = {
        topic.name
        for topic in describe_topics(asked.cluster, topics)
        for row in topic.partitions
        if own not in row.replicas and (topic.name, row.partition) in rows
    }
    if partial or not topics:
        elsewhere_times, elsewhere = asked.broker.lags_elsewhere.of(name)
        if known := elsewhere.keys() & seen.keys():
            times, by_topic, topics, partial = elsewhere_times, elsewhere, known, set()
    return {
        "group": name,
        "broker": own,
        "times": times,
        "topics": [
            {
                "topic": topic,
                "partial": topic in partial,
                "lags": [None if lag < 0 else lag for lag in by_topic[topic]],
            }
            for topic in sorted(topics)
        ],
    }


def _member(holders: Mapping[TopicPartition, Any], row: Progress) -> str | None:
    holder = holders.get((row.topic, row.partition))
    return None if holder is None else str(holder.member)


def _state(cluster: Cluster, name: str) -> GroupState | None:
    """None for what only has offsets."""
    try:
        return describe_group(cluster, name)
    except RejectedError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return None


def _seconds_behind(cluster: Cluster, rows: Iterable[Progress]) -> dict[TopicPartition, float]:
    """How old the first record is that the group has not read; 0 if it has read all. Partitions
    with the largest lag come first, others have no figure.
    """
    seconds: dict[TopicPartition, float] = {}
    behind = []
    for row in rows:
        if row.lag == 0:
            seconds[row.topic, row.partition] = 0.0
        elif row.lag is not None:
            behind.append(row)
    behind.sort(key=lambda row: -(row.lag or 0))
    deadline = time.monotonic() + SECONDS_S
    for row in behind[:SECONDS_MAX]:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        key = row.topic, row.partition
        try:
            stamp = _timestamp_from(cluster, key, max(row.offset or 0, row.start), row.end, left)
        except ClientError:
            continue
        if stamp is not None:
            seconds[key] = max(time.time() - stamp / 1000, 0.0)
    return seconds


def _timestamp_from(
    cluster: Cluster, key: TopicPartition, start: int, end: int, deadline: float
) -> int | None:
    """Of the first record from ``start`` on; None if it has none."""
    if start >= end:
        return None
    sets = RangeFetch(
        cluster, *key, start, start + 1, max_bytes=_FETCH_BYTES, max_wait_ms=50, deadline=deadline
    )
    try:
        for record_set in sets:
            for record in records_of(key, record_set):
                if record.offset >= start:
                    return record.timestamp if record.timestamp >= 0 else None
        return None
    finally:
        sets.close()


# -- changes


def _reset(asked: CheckedRequest) -> ResetOffsets:
    values = asked.values
    cluster, name = asked.cluster, values["group"]
    rows = _rows_to_reset(cluster, values)
    to, value = values["to"], values["value"]
    if (value is None) == (to in WITH_VALUE):
        need, none = ", ".join(WITH_VALUE[:-1]), f"{EARLIEST} and {LATEST}"
        raise BadRequest(f"{need} and {WITH_VALUE[-1]} need value, {none} have none")
    wanted = new_offsets(cluster, rows, to, value or 0)
    if not wanted:
        raise BadRequest("the group has no offset that this could change: name a topic")
    if not values["dry_run"]:
        if count := members_of(cluster, name):
            text = f"the group has {counted(count, 'member')}: stop them, then reset its offsets"
            raise Problem(409, "NON_EMPTY_GROUP", text)
        commit(cluster, name, {key: (at, "") for key, at in wanted.items()})
    return {
        "dry_run": values["dry_run"],
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "offset": row.offset,
                "new_offset": wanted[row.topic, row.partition],
                "new_lag": row.end - wanted[row.topic, row.partition],
            }
            for row in rows
            if (row.topic, row.partition) in wanted
        ],
    }


def _rows_to_reset(cluster: Cluster, values: Mapping[str, Any]) -> list[Progress]:
    """Raises BadRequest, RejectedError."""
    topic, numbers = values["topic"], values["partitions"]
    if numbers is not None and topic is None:
        raise BadRequest("partitions needs topic")
    if topic is None:
        return progress(cluster, values["group"])
    known = cluster.topics([topic]).get(topic)
    if known is None:
        raise RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic[:249]}")
    chosen = list(known.partitions) if numbers is None else numbers
    for number in chosen:
        check_partition(number, known.partitions)
    keys = {(topic, number) for number in chosen}
    rows = progress(cluster, values["group"], keys)
    return [row for row in rows if (row.topic, row.partition) in keys]


def _delete(asked: CheckedRequest) -> Deleted:
    name = asked.values["group"]
    error = delete_groups(asked.cluster, [name])[name]
    if error is not None:
        raise error
    return {"deleted": name}


OPERATIONS = (
    Operation(
        "GET",
        "/groups",
        "Groups, with their lag in records",
        _list,
        Groups,
        (
            Parameter("search", TEXT, "Only those whose id contains this.", "", length_max=1000),
            Parameter("sort", TEXT, "By id, or the largest lag first.", ID, one_of=(ID, LAG)),
            *paging(50, 200),
        ),
    ),
    Operation(
        "GET",
        "/group",
        "A group: members, offsets, lag",
        _describe,
        GroupDescription,
        (GROUP,),
        needs="DESCRIBE on the group",
    ),
    Operation(
        "GET",
        "/group/lags",
        "The lag of a group over the last two hours, by topic, as the broker that coordinates it "
        "has kept it",
        _lags_over_time,
        GroupLags,
        (GROUP,),
        needs="DESCRIBE on the group",
    ),
    Operation(
        "DELETE",
        "/group",
        "Delete a group without members",
        _delete,
        Deleted,
        (GROUP,),
        needs="DELETE on the group",
    ),
    Operation(
        "POST",
        "/group/offsets",
        "Reset the offsets of a group without members",
        _reset,
        ResetOffsets,
        body=(
            GROUP,
            Parameter("topic", TEXT, "All that it has offsets of, if left out.", length_max=249),
            Parameter("partitions", INTEGERS, "Of the topic; all, if left out."),
            Parameter(
                "to",
                TEXT,
                "Where to.",
                required=True,
                one_of=(EARLIEST, LATEST, *WITH_VALUE),
            ),
            Parameter(
                "value",
                INTEGER,
                "An offset, milliseconds since 1970, or by how many records.",
                low=-LONG_MAX,
            ),
            Parameter("dry_run", FLAG, "Only say what would be done.", True),
        ),
        needs="READ on the group and its topics",
    ),
)
