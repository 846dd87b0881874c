"""``kafka-topics``: list, describe, create, alter and delete topics."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cli.kafka.options import Given, ToolOptionError, WrongUse, flag, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed, ToolRefusal
from kbroker.cli.kafka.topic_filter import included
from kbroker.cli.kafka.zookeeper import ZOOKEEPER, connected_either

if TYPE_CHECKING:
    from kbroker.client.admin.configs import Setting
    from kbroker.client.admin.partitions import Eligible, Reassignment
    from kbroker.client.admin.topics import PartitionState, TopicState
    from kbroker.client.connections.cluster import Cluster

_ACTIONS = ("alter", "create", "describe", "list", "delete")
_CONFIGS_TOOL = " (To alter topic configurations, the kafka-configs tool can be used.)"
_REPORTS = (
    "under-replicated-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
    "unavailable-partitions",
)
_REPLICAS_MAX = (1 << 15) - 1

OPTIONS = (
    BOOTSTRAP,
    ZOOKEEPER,
    valued("command-config", "command config property file", "A file with settings of a client."),
    flag("list", "Print the names of all topics."),
    flag("create", "Create a topic."),
    flag("delete", "Delete topics with their records."),
    flag("alter", "Add partitions to topics; with --zookeeper also change their settings."),
    flag("describe", "Print partitions, replicas and settings of topics."),
    valued("topic", "topic", "The topic; a regular expression for topics, except with --create."),
    valued("topic-id", "topic-id", "With --describe, the id of the topic."),
    valued("config", "name=value", "With --create, a setting of the topic; may be repeated."),
    valued("delete-config", "name", "Has no effect; with --zookeeper, a setting to unset."),
    valued("deleteConfig", "name", "With --zookeeper, a setting to unset."),
    valued(
        "partitions",
        "# of partitions",
        "How many partitions the topic gets, with --alter more than now: keys may then be in "
        "another partition than before. Otherwise num.partitions of the brokers.",
        kind=int,
    ),
    valued(
        "replication-factor",
        "replication factor",
        "How many brokers keep each partition. Otherwise default.replication.factor.",
        kind=int,
    ),
    valued(
        "replica-assignment",
        "broker_id_for_part1_replica1 : broker_id_for_part1_replica2 , "
        "broker_id_for_part2_replica1 : broker_id_for_part2_replica2 , ...",
        "Which brokers keep each partition.",
    ),
    flag("under-replicated-partitions", "Describe only partitions with replicas out of sync."),
    flag("unavailable-partitions", "Describe only partitions without a live leader."),
    flag(
        "under-min-isr-partitions",
        "Describe only partitions with fewer replicas in sync than min.insync.replicas.",
    ),
    flag(
        "at-min-isr-partitions",
        "Describe only partitions with exactly min.insync.replicas in sync.",
    ),
    flag("topics-with-overrides", "Describe only topics with settings of their own."),
    flag("if-exists", "A topic that does not exist is no error."),
    flag("if-not-exists", "With --create, a topic that exists is no error."),
    flag("exclude-internal", "Leave out the topics in which brokers keep their state."),
    flag("force", "Has no effect; 0.8 and 2.x have it, too."),
    valued(
        "partition-size-limit-per-response",
        "maximum number of partitions per response",
        "How many partitions a broker describes in one response.",
        kind=int,
    ),
)


def _check(given: Given) -> None:
    if given.count(_ACTIONS) != 1:
        raise WrongUse(
            "Command must include exactly one action: --list, --describe, --create, --alter or "
            "--delete"
        )
    old = "zookeeper" in given
    if "delete-config" in given and not old:
        print(
            "delete-config option is no longer supported and deprecated since version 4.0. The "
            "config will be fully removed in future releases.",
            file=sys.stderr,
        )
    if "bootstrap-server" not in given and not old:
        raise ToolFailed("--bootstrap-server must be specified")
    if "describe" in given and "if-exists" in given:
        if not given.count(("topic", "topic-id")):
            raise WrongUse("--topic or --topic-id is required to describe a topic")
        if given.count(("topic", "topic-id")) == 2:
            print(
                "Only topic id will be used when both --topic and --topic-id are specified and "
                "topicId is not Uuid.ZERO_UUID"
            )
    if not given.count(("list", "describe")):
        given.require("topic")
    if "alter" in given and not old:
        if given.count(("bootstrap-server", "config")) == 2:
            raise WrongUse(
                'Option combination "[[bootstrap-server], [config]]" can\'t be used with option '
                f'"[alter]"{_CONFIGS_TOOL}'
            )
        given.require("partitions")
    _check_invalid(given)


def _check_invalid(given: Given) -> None:
    def only_with(name: str, *actions: str, also: tuple[str, ...] = ()) -> None:
        given.exclude(name, [each for each in _ACTIONS if each not in actions] + list(also))

    only_with("config", "alter", "create")
    only_with("partitions", "alter", "create")
    only_with("replication-factor", "create")
    only_with("replica-assignment", "alter", "create")
    if "create" in given:
        given.exclude("replica-assignment", ("partitions", "replication-factor"))
    for report in _REPORTS:
        only_with(report, "describe", also=("topics-with-overrides",))
    only_with("topics-with-overrides", "describe", also=_REPORTS)
    only_with("if-exists", "alter", "delete", "describe")
    only_with("if-not-exists", "create")
    only_with("exclude-internal", "list", "describe")


def _run(given: Given) -> int:
    _check(given)
    from kbroker.cli.kafka.java_words import java_message
    from kbroker.client.errors import ClientError

    action = next(name for name in _ACTIONS if name in given)
    try:
        with connected_either(given) as cluster:
            _RUNS[action](given, cluster)
    except ClientError as error:
        print(f"Error while executing topic command : {java_message(error)}")
        return 1
    except (ToolRefusal, ToolOptionError) as error:
        print(f"Error while executing topic command : {error}")
        return 1
    return 0


# -- list


def _names(given: Given, cluster: Cluster) -> list[str]:
    """The topics that are meant; never waits for more than one response."""
    from kbroker.client.admin.topics import list_topics

    allowed = included(given.one("topic"))
    leave_internal = "exclude-internal" in given
    return [
        topic.name
        for topic in list_topics(cluster)
        if allowed(topic.name) and not (topic.internal and leave_internal)
    ]


def _list(given: Given, cluster: Cluster) -> None:
    print("\n".join(_names(given, cluster)))


def _must_exist(given: Given, names: list[str]) -> None:
    topic = given.one("topic")
    if topic and not names and "if-exists" not in given:
        raise ToolRefusal(f"Topic '{topic}' does not exist as expected")


# -- create, alter, delete


def _assignment(given: Given) -> list[list[int]] | None:
    text = given.one("replica-assignment")
    if not text:
        return None
    rows: list[list[int]] = []
    for number, part in enumerate(text.split(",")):
        try:
            row = [int(node) for node in part.split(":")]
        except ValueError:
            bad = next(node for node in part.split(":") if not node.strip().isdecimal())
            raise ToolRefusal(f'For input string: "{bad.strip()}"') from None
        if twice := [node for node in dict.fromkeys(row) if row.count(node) > 1]:
            listed = ",".join(map(str, twice))
            raise ToolRefusal(
                f"Partition replica lists may not contain duplicate entries: {listed}"
            )
        rows.append(row)
        if len(row) != len(rows[0]):
            raise ToolRefusal(f"Partition {number} has different replication factor: {row}")
    return rows


def _configs(given: Given) -> dict[str, str]:
    configs = {}
    for text in given.all("config"):
        parts = re.split(r"\s*=\s*", text)
        if len(parts) != 2 or not parts[1]:
            raise ToolRefusal(
                "requirement failed: Invalid topic config: all configs to be added must be in the "
                'format "key=val".'
            )
        configs[parts[0].strip()] = parts[1].strip()
    return configs


def _create(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.topics import BROKER_DEFAULT, NewTopic, create_topics
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode

    name, partitions = given.one("topic"), given.one("partitions")
    replicas, rows, configs = given.one("replication-factor"), _assignment(given), _configs(given)
    if "." in name or "_" in name:
        print(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore "
            "('_') could collide. To avoid issues it is best to use either, but not both."
        )
    if replicas is not None and not 1 <= replicas <= _REPLICAS_MAX:
        raise ToolRefusal(f"The replication factor must be between 1 and {_REPLICAS_MAX} inclusive")
    if partitions is not None and partitions < 1:
        raise ToolRefusal("The partitions must be greater than 0")
    topic = NewTopic(name, partitions or BROKER_DEFAULT, replicas or BROKER_DEFAULT, rows, configs)
    result = create_topics(cluster, [topic])[name]
    if not isinstance(result, RejectedError):
        print(f'Created topic "{name}".' if "zookeeper" in given else f"Created topic {name}.")
    elif not (result.code == ErrorCode.TOPIC_ALREADY_EXISTS and "if-not-exists" in given):
        raise result


def _alter(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.topics import add_partitions, describe_topics

    rows = _assignment(given)
    changes = _changes(given)
    names = _names(given, cluster)
    _must_exist(given, names)
    if changes:
        _alter_configs(given, cluster, names, changes)
    count = given.one("partitions")
    if not names or count is None:
        return
    added: Mapping[str, list[list[int]]] = {}
    if rows is not None:
        known = describe_topics(cluster, names)
        added = {topic.name: rows[len(topic.partitions) :] for topic in known}
    results = add_partitions(cluster, dict.fromkeys(names, count), assignments=added)
    for error in results.values():
        if error is not None:
            raise error


def _changes(given: Given) -> dict[str, str | None]:
    """Of settings, in the form of 0.8."""
    changes: dict[str, str | None] = {**_configs(given)}
    if "zookeeper" in given:
        changes |= dict.fromkeys(given.all("delete-config") + given.all("deleteConfig"))
    return changes


def _alter_configs(
    given: Given, cluster: Cluster, names: list[str], changes: Mapping[str, str | None]
) -> None:
    from kbroker.client.admin.configs import TOPIC, alter_configs

    for name in names:
        alter_configs(cluster, TOPIC, name, changes)
        print(f'Updated config for topic "{name}".')


def _delete(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.topics import delete_topics

    names = _names(given, cluster)
    _must_exist(given, names)
    for error in delete_topics(cluster, names).values() if names else ():
        if error is not None:
            raise error


# -- describe


class _Described(NamedTuple):
    """What is printed of a topic. configs: all its settings. moves: its partitions that move."""

    topic: TopicState
    configs: list[Setting]
    eligible: Mapping[tuple[str, int], Eligible]
    moves: Mapping[tuple[str, int], Reassignment]
    alive: frozenset[int]

    @property
    def min_isr(self) -> int:
        values = [each.value for each in self.configs if each.name == "min.insync.replicas"]
        return int(values[0] or 1) if values else 1


def _describe(given: Given, cluster: Cluster) -> None:
    from kbroker.cli.kafka.java_words import hash_order, string_hash
    from kbroker.client.admin.cluster import summarize_cluster
    from kbroker.client.admin.configs import TOPIC, describe_configs
    from kbroker.client.admin.partitions import eligible_replicas
    from kbroker.client.errors import RejectedError

    state = summarize_cluster(cluster)
    topics = {topic.name: topic for topic in _wanted(given, cluster)}
    if not topics:
        return
    configs = describe_configs(cluster, TOPIC, topics)
    # COMPAT: Java's client asks for ids by a request that does not tell.
    by_id = "topic-id" in given
    most = given.one("partition-size-limit-per-response")
    eligible = {} if by_id else eligible_replicas(cluster, topics, most)
    moves = _moves(cluster, topics.values())
    alive = frozenset(broker.node for broker in state.brokers)
    for name in hash_order(topics, string_hash, len(topics)):
        settings = configs[name]
        if isinstance(settings, RejectedError):
            raise settings
        _print(given, _Described(topics[name], settings, eligible, moves, alive))


def _wanted(given: Given, cluster: Cluster) -> list[TopicState]:
    from kbroker.client.admin.topics import describe_topics, list_topics
    from kbroker.uuids import parse_uuid

    text = given.one("topic-id")
    if text is not None:
        try:
            wanted = parse_uuid(text)
        except ValueError as error:
            raise ToolRefusal(str(error)) from error
        if any(wanted):
            topics = [topic for topic in list_topics(cluster) if topic.id == wanted]
            if not topics and "if-exists" not in given:
                raise ToolRefusal(f"TopicId '{text}' does not exist as expected")
            return topics
    names = _names(given, cluster)
    _must_exist(given, names)
    return describe_topics(cluster, names)


def _moves(cluster: Cluster, topics: object) -> Mapping[tuple[str, int], Reassignment]:
    from kbroker.client.admin.partitions import list_reassignments
    from kbroker.client.errors import RejectedError, UnsupportedByBroker
    from kbroker.errors import ErrorCode

    try:
        return list_reassignments(cluster)
    except UnsupportedByBroker:
        return {}
    except RejectedError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return {}


def _print(given: Given, described: _Described) -> None:
    old = "zookeeper" in given
    own = [each for each in described.configs if each.source != "DEFAULT_CONFIG"]
    if not given.count(_REPORTS) and (own or "topics-with-overrides" not in given):
        shown = [each for each in own if each.own] if old else own
        print(_topic_line(described, ",".join(f"{each.name}={each.value}" for each in shown), old))
    if "topics-with-overrides" in given:
        return
    for row in described.topic.partitions:
        if _is_reported(given, described, row):
            print(_old_line(described, row) if old else _partition_line(described, row))


def _topic_line(described: _Described, configs: str, old: bool) -> str:
    from kbroker.uuids import uuid_text

    topic = described.topic
    first = topic.partitions[0]
    factor = len(first.replicas)
    move = described.moves.get((topic.name, first.partition))
    if move is not None and set(first.replicas) & {*move.adding, *move.removing}:
        factor = len(move.replicas) - len(move.adding)
    fields = [("Topic", topic.name), ("PartitionCount", len(topic.partitions))]
    fields += [("ReplicationFactor", factor), ("Configs", configs)]
    if old:
        return "\t".join(f"{name}:{value}" for name, value in fields)
    if any(topic.id):
        fields.insert(1, ("TopicId", uuid_text(topic.id)))
    return "\t".join(f"{name}: {value}" for name, value in fields)


def _is_reported(given: Given, described: _Described, row: PartitionState) -> bool:
    if not given.count(_REPORTS):
        return True
    move = described.moves.get((described.topic.name, row.partition))
    factor = len(row.replicas)
    if move is not None and set(row.replicas) & {*move.adding, *move.removing}:
        factor = len(move.replicas) - len(move.adding)
    reasons = {
        "under-replicated-partitions": factor - len(row.isr) > 0,
        "under-min-isr-partitions": len(row.isr) < described.min_isr,
        "at-min-isr-partitions": len(row.isr) == described.min_isr,
        "unavailable-partitions": row.leader is None or row.leader not in described.alive,
    }
    return any(name in given and holds for name, holds in reasons.items())


def _nodes(nodes: list[int] | None) -> str:
    return "N/A" if nodes is None else ",".join(map(str, nodes))


def _partition_line(described: _Described, row: PartitionState) -> str:
    key = described.topic.name, row.partition
    parts = [
        f"\tTopic: {key[0]}",
        f"Partition: {row.partition}",
        f"Leader: {'none' if row.leader is None else row.leader}",
        f"Replicas: {_nodes(row.replicas)}",
        f"Isr: {_nodes(row.isr)}",
    ]
    if move := described.moves.get(key):
        parts.append(f"Adding Replicas: {_nodes(move.adding)}")
        parts.append(f"Removing Replicas: {_nodes(move.removing)}")
    eligible = described.eligible.get(key)
    parts.append(f"Elr: {_nodes(eligible and eligible.replicas)}")
    parts.append(f"LastKnownElr: {_nodes(eligible and eligible.last_known)}")
    return "\t".join(parts)


def _old_line(described: _Described, row: PartitionState) -> str:
    """As 0.8 prints it."""
    leader = "none" if row.leader is None else row.leader
    return (
        f"\tTopic: {described.topic.name}\tPartition: {row.partition}\tLeader: {leader}"
        f"\tReplicas: {_nodes(row.replicas)}\tIsr: {_nodes(row.isr)}"
    )


_RUNS: dict[str, Callable[[Given, Cluster], None]] = {
    "list": _list,
    "create": _create,
    "alter": _alter,
    "delete": _delete,
    "describe": _describe,
}

TOOL = Tool(
    "This tool helps to create, delete, describe, or change a topic.",
    OPTIONS,
    _run,
    title_alone="Create, delete, describe, or change a topic.",
)
