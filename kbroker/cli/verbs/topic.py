"""``kbroker topic``: list, create, describe, alter and delete topics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.cli.arguments import (
    Action,
    CommandFailed,
    Usage,
    add_format,
    agreed,
    deferred,
    nearest,
    printed,
    printed_document,
    table_text,
)
from kbroker.cli.config_arguments import add_settings, check_name, pairs
from kbroker.cli.connecting import add_connection, connected
from kbroker.wording import shown

if TYPE_CHECKING:
    from kbroker.client.admin.topics import TopicState
    from kbroker.client.connections.cluster import Cluster

PARTITIONS_MAX, REPLICAS_MAX = (1 << 31) - 1, (1 << 15) - 1
_LIST_COLUMNS = {
    "name": "TOPIC",
    "partitions": "PARTITIONS",
    "replication_factor": "REPLICATION",
}
_PARTITION_COLUMNS = {
    "partition": "PARTITION",
    "leader": "LEADER",
    "replicas": "REPLICAS",
    "isr": "ISR",
    "offline": "OFFLINE",
}
_OFFSET_COLUMNS = {"start": "START", "end": "END"}


def _number(most: int, text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 11 else 0
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {most}")
    return number


def _partitions(text: str) -> int:
    return _number(PARTITIONS_MAX, text)


def _replicas(text: str) -> int:
    return _number(REPLICAS_MAX, text)


def _topics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="+", metavar="TOPIC")


def _connection_and_format(parser: argparse.ArgumentParser) -> None:
    add_format(parser)
    add_connection(parser)


# -- list


def _describe_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pattern",
        nargs="*",
        metavar="PATTERN",
        help="only topics with these names, in which * and ? stand for others",
    )
    parser.add_argument(
        "--internal", action="store_true", help="also the topics in which brokers keep their state"
    )
    _connection_and_format(parser)


def _list(options: argparse.Namespace) -> None:
    with connected(options) as cluster:
        from kbroker.client.admin.topics import list_topics

        topics = list_topics(cluster)
    rows = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": topic.replication_factor,
        }
        for topic in topics
        if (options.internal or not topic.internal) and _matches(topic.name, options.pattern)
    ]
    printed(options.output, _LIST_COLUMNS, rows, "no topics")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    if not patterns:
        return True
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, pattern) for pattern in patterns)


# -- create

_CREATE_EPILOG = """\
examples:
  kbroker topic create orders
  kbroker topic create orders invoices -p 12 -r 3 -c retention.ms=86400000"""


def _describe_create(parser: argparse.ArgumentParser) -> None:
    _topics(parser)
    parser.add_argument(
        "-p",
        "--partitions",
        type=_partitions,
        metavar="N",
        help="how many partitions (num.partitions of the brokers)",
    )
    parser.add_argument(
        "-r",
        "--replication-factor",
        type=_replicas,
        metavar="N",
        help="how many brokers keep each partition (default.replication.factor of the brokers)",
    )
    add_settings(parser)
    parser.add_argument(
        "--if-not-exists", action="store_true", help="a topic that exists is no error"
    )
    parser.add_argument("--dry-run", action="store_true", help="only check whether it could")
    _connection_and_format(parser)


def _create(options: argparse.Namespace) -> None:
    configs = pairs("topic", options.config)
    with connected(options) as cluster:
        from kbroker.client.admin.topics import (
            BROKER_DEFAULT,
            CreatedTopic,
            NewTopic,
            create_topics,
        )
        from kbroker.errors import ErrorCode

        partitions = options.partitions or BROKER_DEFAULT
        replicas = options.replication_factor or BROKER_DEFAULT
        topics = [
            NewTopic(name, partitions, replicas, configs=configs)
            for name in dict.fromkeys(options.topic)
        ]
        results = create_topics(cluster, topics, validate_only=options.dry_run)
    created = [each for each in results.values() if isinstance(each, CreatedTopic)]
    if options.output != "table":
        printed(options.output, _LIST_COLUMNS, [each._asdict() for each in created])
    for topic in created if options.output == "table" else ():
        word = "could create" if options.dry_run else "created"
        print(f"{word} topic {topic.name}{_size(topic.partitions, topic.replication_factor)}")
    failed = [each for each in results.values() if not isinstance(each, CreatedTopic)]
    if options.if_not_exists:
        failed = [each for each in failed if each.code != ErrorCode.TOPIC_ALREADY_EXISTS]
    _raise_all(failed)


def _size(partitions: int, replication_factor: int) -> str:
    if partitions < 0:
        return ""
    noun = "partition" if partitions == 1 else "partitions"
    return f": {partitions} {noun}, replication factor {replication_factor}"


def _raise_all(errors: Iterable[object]) -> None:
    if texts := [str(error) for error in errors if error is not None]:
        raise CommandFailed("; ".join(texts))


# -- describe


def _describe_describe(parser: argparse.ArgumentParser) -> None:
    _topics(parser)
    parser.add_argument(
        "--offsets", action="store_true", help="also the first offset and the end of each partition"
    )
    _connection_and_format(parser)


def _describe(options: argparse.Namespace) -> None:
    with connected(options) as cluster:
        topics = _existing(cluster, options.topic)
        configs = _own_configs(cluster, [topic.name for topic in topics])
        offsets = _offsets(cluster, topics) if options.offsets else None
    documents = [_document(topic, configs[topic.name], offsets) for topic in topics]
    if options.output != "table":
        printed_document(options.output, documents)
        return
    columns = _PARTITION_COLUMNS | (_OFFSET_COLUMNS if offsets is not None else {})
    print("\n\n".join(_topic_text(columns, document) for document in documents))


def _existing(cluster: Cluster, names: Iterable[str]) -> list[TopicState]:
    """Raises CommandFailed with the nearest name of a topic that exists."""
    from kbroker.client.admin.topics import describe_topics, list_topics
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode

    wanted = list(dict.fromkeys(names))
    try:
        return describe_topics(cluster, wanted)
    except RejectedError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        known = [topic.name for topic in list_topics(cluster)]
        missing = next((name for name in wanted if name not in known), wanted[0])
        meant = nearest(missing, known)
        instead = f"; did you mean {meant}?" if meant else ""
        raise CommandFailed(f"topic {missing} does not exist{instead}") from error


def _own_configs(cluster: Cluster, names: list[str]) -> dict[str, dict[str, str | None] | None]:
    """The settings that were set for the topics; None where this user may not read them."""
    from kbroker.client.admin.configs import TOPIC, describe_configs

    described = describe_configs(cluster, TOPIC, names)
    own: dict[str, dict[str, str | None] | None] = {}
    for name in names:
        settings = described.get(name)
        own[name] = None
        if isinstance(settings, list):
            own[name] = {each.name: each.value for each in settings if each.own}
    return own


def _offsets(
    cluster: Cluster, topics: Iterable[TopicState]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Start and end of the partitions that have a leader."""
    from kbroker.client.batches.offsets import EARLIEST, LATEST, list_offsets

    keys = [
        (topic.name, row.partition)
        for topic in topics
        for row in topic.partitions
        if row.leader is not None
    ]
    starts = list_offsets(cluster, dict.fromkeys(keys, EARLIEST))
    ends = list_offsets(cluster, dict.fromkeys(keys, LATEST))
    return {key: (starts[key].offset, ends[key].offset) for key in keys}


def _document(
    topic: TopicState,
    configs: Mapping[str, str | None] | None,
    offsets: Mapping[tuple[str, int], tuple[int, int]] | None,
) -> dict[str, Any]:
    from kbroker.uuids import uuid_text

    partitions: list[dict[str, Any]] = [dict(row._asdict()) for row in topic.partitions]
    for row in partitions if offsets is not None else ():
        assert offsets is not None
        row["start"], row["end"] = offsets.get((topic.name, row["partition"]), (None, None))
    return {
        "name": topic.name,
        "id": uuid_text(topic.id) if any(topic.id) else None,
        "internal": topic.internal,
        "replication_factor": topic.replication_factor,
        "configs": None if configs is None else dict(configs),
        "partitions": partitions,
    }


def _topic_text(columns: Mapping[str, str], document: Mapping[str, Any]) -> str:
    size = _size(len(document["partitions"]), document["replication_factor"])
    parts = [f"topic {document['name']}{size}"]
    if document["id"]:
        parts.append(f"id {document['id']}")
    parts += [f"{name}={value}" for name, value in (document["configs"] or {}).items()]
    return ", ".join(map(shown, parts)) + "\n" + table_text(columns, document["partitions"])


# -- alter

_ALTER_EPILOG = """\
examples:
  kbroker topic alter orders -p 24
  kbroker topic alter orders -c retention.ms=86400000 --unset cleanup.policy

More partitions move keys: records of a key may be in another partition than before."""


def _describe_alter(parser: argparse.ArgumentParser) -> None:
    _topics(parser)
    parser.add_argument(
        "-p",
        "--partitions",
        type=_partitions,
        metavar="N",
        help="how many partitions it shall have, more than now",
    )
    add_settings(parser, unset=True)
    parser.add_argument("--dry-run", action="store_true", help="only check whether it could")
    add_connection(parser)


def _alter(options: argparse.Namespace) -> None:
    changes: dict[str, str | None] = {**pairs("topic", options.config)}
    for name in options.unset:
        check_name("topic", name)
        if name in changes:
            raise Usage(f"{name} is both set and unset")
        changes[name] = None
    if not changes and options.partitions is None:
        raise Usage("nothing to alter: give --partitions, --config or --unset")
    names = list(dict.fromkeys(options.topic))
    with connected(options) as cluster:
        from kbroker.client.admin.configs import TOPIC, alter_configs
        from kbroker.client.admin.topics import add_partitions

        _existing(cluster, names)
        for name in names if changes else ():
            alter_configs(cluster, TOPIC, name, changes, validate_only=options.dry_run)
        if options.partitions is not None:
            counts = dict.fromkeys(names, options.partitions)
            results = add_partitions(cluster, counts, validate_only=options.dry_run)
            _raise_all(results.values())
    for name in names:
        print(f"{'could alter' if options.dry_run else 'altered'} topic {name}")


# -- delete


def _describe_delete(parser: argparse.ArgumentParser) -> None:
    _topics(parser)
    parser.add_argument("--force", action="store_true", help="do not ask")
    parser.add_argument(
        "--if-exists", action="store_true", help="a topic that does not exist is no error"
    )
    add_connection(parser)


def _delete(options: argparse.Namespace) -> None:
    if not options.force and not sys.stdin.isatty():
        raise Usage("add --force to delete without being asked")
    names = list(dict.fromkeys(options.topic))
    with connected(options) as cluster:
        from kbroker.client.admin.topics import delete_topics
        from kbroker.errors import ErrorCode

        if not options.if_exists:
            _existing(cluster, names)
        if not options.force and not agreed(
            [f"topic {name} with all its records" for name in names], "Delete?"
        ):
            raise CommandFailed("nothing was deleted")
        results = delete_topics(cluster, names)
    for name, error in results.items():
        if error is None:
            print(f"deleted topic {name}")
    _raise_all(
        error
        for error in results.values()
        if error is not None
        and not (options.if_exists and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    )


# -- trim

_TRIM_EPILOG = """\
Without --execute nothing is deleted: it is only shown what would be. What is deleted does not come
back, and consumers that were there begin at what is left.

examples:
  kbroker topic trim orders --before-time 2026-11-01T00:00:00
  kbroker topic trim orders --partition 3 --before-offset 12000 --execute
  kbroker topic trim orders --keep 1000 --execute    the last thousand of each partition stay
  kbroker topic trim orders --all --execute"""


def _trim() -> Action:
    from kbroker.cli.operation_verbs import VerbView, actions_of
    from kbroker.console.api.records import OPERATIONS

    return actions_of(OPERATIONS, {"trim": VerbView(epilog=_TRIM_EPILOG)})["trim"]


ACTIONS = {
    "list": Action("list topics", _describe_list, _list),
    "create": Action("create topics", _describe_create, _create, _CREATE_EPILOG),
    "describe": Action("show partitions, replicas and settings", _describe_describe, _describe),
    "alter": Action("add partitions, or change settings", _describe_alter, _alter, _ALTER_EPILOG),
    "delete": Action("delete topics with their records", _describe_delete, _delete),
    "trim": deferred("delete the first records of a topic", _trim, _TRIM_EPILOG),
}
