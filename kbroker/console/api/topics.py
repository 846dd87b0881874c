"""Topics: list, describe, create, delete, add partitions, change settings."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kbroker.client.admin.configs import TOPIC, alter_configs, describe_configs
from kbroker.client.admin.rights import Rights, rights_on_topic, sees_all_topics
from kbroker.client.admin.topics import (
    BROKER_DEFAULT,
    NewTopic,
    TopicState,
    add_partitions,
    create_topics,
    delete_topics,
    describe_topics,
    search_topics,
)
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, RejectedError
from kbroker.console.answers import (
    ChangedSettings,
    CreatedTopicRow,
    Deleted,
    Growth,
    PartitionRow,
    PartitionsAdded,
    TopicDescription,
    TopicRow,
    Topics,
    TopicSettings,
)
from kbroker.console.operation import (
    FLAG,
    INTEGER,
    SETTINGS,
    TEXT,
    CheckedRequest,
    Operation,
    Parameter,
    page_of,
    paging,
)
from kbroker.console.topic_figures import TopicFigures

# BOUND: partitions whose figures are looked up to sort topics, and seconds that it may take; the
# figures of others are unknown.
SORTED_MAX = 20_000
SORTED_S = 5.0
NAME, SIZE, RATE = "name", "size", "rate"
HOUR_S, DAY_S = 3600, 86_400

DRY_RUN = Parameter("dry_run", FLAG, "Only check whether it could be done.", False)
SEARCH = Parameter("search", TEXT, "Only those whose name contains this.", "", length_max=249)


def _list(asked: CheckedRequest) -> Topics:
    values = asked.values
    topics = search_topics(asked.cluster, values["search"], internal=values["internal"])
    known = None
    if values["sort"] != NAME:
        topics, known = _sorted(asked, topics)
    page, after = page_of(topics, values, lambda topic: topic.name)
    figures = TopicFigures(asked.cluster, page)
    rows = [_row(asked, topic, figures) for topic in page]
    asks = not topics and not values["search"]
    return {
        "total": len(topics),
        "topics": rows,
        "sorted": known,
        "sees_all": sees_all_topics(asked.cluster) if asks else None,
        "next_cursor": after,
    }


def _sorted(
    asked: CheckedRequest, topics: Sequence[TopicState]
) -> tuple[Sequence[TopicState], int]:
    """The largest first, and of how many the figure is known."""
    all_of_them = list(topics[0 : len(topics)])
    figures = TopicFigures(asked.cluster, all_of_them, partitions_max=SORTED_MAX, deadline=SORTED_S)
    by_size = asked.values["sort"] == SIZE
    of = {
        topic.name: figure
        for topic in all_of_them
        if (figure := figures.bytes_of(topic) if by_size else _rate(asked, topic, figures))
        is not None
    }
    all_of_them.sort(key=lambda topic: (-of.get(topic.name, -1), topic.name))
    return all_of_them, len(of)


def _rate(asked: CheckedRequest, topic: TopicState, figures: TopicFigures) -> float | None:
    return None if asked.rates is None else asked.rates.look(topic, figures.end(topic))


def _row(asked: CheckedRequest, topic: TopicState, figures: TopicFigures) -> TopicRow:
    return {
        "name": topic.name,
        "internal": topic.internal,
        "partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "offline": sum(row.leader is None for row in topic.partitions),
        "under_replicated": sum(len(row.isr) < len(row.replicas) for row in topic.partitions),
        "records": figures.records(topic),
        "bytes": figures.bytes_of(topic),
        "records_per_second": _rate(asked, topic, figures),
    }


def _describe(asked: CheckedRequest) -> TopicDescription:
    values = asked.values
    (topic,) = describe_topics(asked.cluster, [values["topic"]])
    page, after = page_of(topic.partitions, values, lambda row: str(row.partition))
    figures = TopicFigures(asked.cluster, [topic])
    rows: list[PartitionRow] = []
    for row in page:
        key = (topic.name, row.partition)
        rows.append(
            {
                "partition": row.partition,
                "leader": row.leader,
                "replicas": row.replicas,
                "isr": row.isr,
                "offline": row.offline,
                "start": figures.starts.get(key),
                "end": figures.ends.get(key),
                "bytes": figures.sizes.get(key),
            }
        )
    id_text = topic.id.hex() if any(topic.id) else None
    return {
        **_row(asked, topic, figures),
        "id": id_text,
        "growth": _growth(topic, figures),
        "rights": _rights(asked.cluster, topic.name),
        "rows": rows,
        "next_cursor": after,
    }


def _rights(cluster: Cluster, topic: str) -> Rights:
    try:
        return rights_on_topic(cluster, topic)
    except ClientError:
        return None


def _growth(topic: TopicState, figures: TopicFigures) -> Growth:
    """Records of the last hour and day, by their timestamps."""
    now_ms = int(time.time() * 1000)
    keys = [(topic.name, row.partition) for row in topic.partitions]

    def since(seconds: int) -> int | None:
        firsts = figures.at(now_ms - seconds * 1000)
        if not all(key in firsts and key in figures.ends for key in keys):
            return None
        return sum(figures.ends[key] - firsts[key] for key in keys if 0 <= firsts[key])

    return {"records_last_hour": since(HOUR_S), "records_last_day": since(DAY_S)}


def _settings(asked: CheckedRequest) -> TopicSettings:
    name = asked.values["topic"]
    rows = describe_configs(asked.cluster, TOPIC, [name], documentation=True)[name]
    if isinstance(rows, RejectedError):
        raise rows
    return {
        "settings": [
            {
                "name": row.name,
                "value": row.value,
                "source": row.source,
                "own": row.own,
                "sensitive": row.sensitive,
                "documentation": row.documentation,
            }
            for row in rows
        ]
    }


def _alter_settings(asked: CheckedRequest) -> ChangedSettings:
    values = asked.values
    alter_configs(
        asked.cluster,
        TOPIC,
        values["topic"],
        values["settings"],
        validate_only=values["dry_run"],
    )
    return {"settings": values["settings"], "dry_run": values["dry_run"]}


def _create(asked: CheckedRequest) -> CreatedTopicRow:
    values = asked.values
    name = values["name"]
    settings = {key: text for key, text in (values["settings"] or {}).items() if text is not None}
    wanted = NewTopic(
        name,
        values["partitions"] or BROKER_DEFAULT,
        values["replication_factor"] or BROKER_DEFAULT,
        configs=settings,
    )
    made = create_topics(asked.cluster, [wanted], validate_only=values["dry_run"])[name]
    if isinstance(made, RejectedError):
        raise made
    return {
        "name": made.name,
        "partitions": made.partitions,
        "replication_factor": made.replication_factor,
        "dry_run": values["dry_run"],
    }


def _delete(asked: CheckedRequest) -> Deleted:
    name = asked.values["topic"]
    error = delete_topics(asked.cluster, [name])[name]
    if error is not None:
        raise error
    return {"deleted": name}


def _add_partitions(asked: CheckedRequest) -> PartitionsAdded:
    values = asked.values
    name, count = values["topic"], values["count"]
    error = add_partitions(asked.cluster, {name: count}, validate_only=values["dry_run"])[name]
    if error is not None:
        raise error
    return {"topic": name, "partitions": count, "dry_run": values["dry_run"]}


_OF_TOPIC = Parameter("settings", SETTINGS, "Settings of the topic; null unsets.", required=True)

OPERATIONS = (
    Operation(
        "GET",
        "/topics",
        "Topics, with their size and rate",
        _list,
        Topics,
        (
            SEARCH,
            Parameter(
                "sort",
                TEXT,
                "By name, or the largest size or rate first.",
                NAME,
                one_of=(NAME, SIZE, RATE),
            ),
            Parameter("internal", FLAG, "Internal topics, too.", False),
            *paging(),
        ),
    ),
    Operation(
        "POST",
        "/topics",
        "Create a topic",
        _create,
        CreatedTopicRow,
        body=(
            Parameter("name", TEXT, "Its name.", required=True, length_min=1, length_max=249),
            Parameter(
                "partitions", INTEGER, "How many; num.partitions if left out.", low=1, high=100_000
            ),
            Parameter(
                "replication_factor",
                INTEGER,
                "Replicas of each; default.replication.factor if left out.",
                low=1,
                high=1000,
            ),
            Parameter("settings", SETTINGS, "Settings of the topic."),
            DRY_RUN,
        ),
        needs="CREATE on the topic or the cluster",
    ),
    Operation(
        "GET",
        "/topics/{topic}",
        "A topic with its partitions, offsets, sizes and growth",
        _describe,
        TopicDescription,
        paging(),
        needs="DESCRIBE on the topic",
    ),
    Operation(
        "DELETE",
        "/topics/{topic}",
        "Delete a topic with its records",
        _delete,
        Deleted,
        needs="DELETE on the topic",
    ),
    Operation(
        "POST",
        "/topics/{topic}/partitions",
        "Add partitions; keys may be in other ones afterwards",
        _add_partitions,
        PartitionsAdded,
        body=(
            Parameter(
                "count",
                INTEGER,
                "How many there shall be.",
                required=True,
                low=1,
                high=100_000,
            ),
            DRY_RUN,
        ),
        needs="ALTER on the topic",
    ),
    Operation(
        "GET",
        "/topics/{topic}/settings",
        "The settings of a topic",
        _settings,
        TopicSettings,
        needs="DESCRIBE_CONFIGS on the topic",
    ),
    Operation(
        "POST",
        "/topics/{topic}/settings",
        "Change settings of a topic, all or none",
        _alter_settings,
        ChangedSettings,
        body=(_OF_TOPIC, DRY_RUN),
        needs="ALTER_CONFIGS on the topic",
    ),
)
