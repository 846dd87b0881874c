"""``kbroker group``: list, describe, delete and reset consumer groups."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
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
from kbroker.cli.connecting import add_connection, connected
from kbroker.cli.times import duration_ms, time_ms
from kbroker.wording import counted, shown

if TYPE_CHECKING:
    from kbroker.client.admin.groups import GroupState, Progress
    from kbroker.client.connections.cluster import Cluster

    TopicPartition = tuple[str, int]

_LIST_COLUMNS = {"group": "GROUP", "type": "TYPE", "state": "STATE", "coordinator": "COORDINATOR"}
_LAG_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "offset": "OFFSET",
    "end": "END",
    "lag": "LAG",
    "client": "CLIENT",
    "host": "HOST",
}
_MEMBER_COLUMNS = {
    "member": "MEMBER",
    "instance": "INSTANCE",
    "client": "CLIENT",
    "host": "HOST",
    "partitions": "PARTITIONS",
}
_RESET_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "offset": "OFFSET",
    "new_offset": "NEW OFFSET",
}
_OFFSET_MAX = (1 << 63) - 1


def _connection_and_format(parser: argparse.ArgumentParser) -> None:
    add_format(parser)
    add_connection(parser)


# -- list


def _describe_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pattern",
        nargs="*",
        metavar="PATTERN",
        help="only groups with these names, in which * and ? stand for others",
    )
    parser.add_argument(
        "--state", action="append", default=[], metavar="STATE", help="only these, such as Stable"
    )
    _connection_and_format(parser)


def _list(options: argparse.Namespace) -> None:
    with connected(options) as cluster:
        from kbroker.client.admin.groups import list_groups

        groups = list_groups(cluster)
    states = {state.lower() for state in options.state}
    rows = [
        {
            "group": row.group,
            "type": row.kind or None,
            "state": row.state or None,
            "coordinator": row.coordinator,
        }
        for row in groups
        if (not states or row.state.lower() in states)
        and (not options.pattern or any(fnmatchcase(row.group, each) for each in options.pattern))
    ]
    printed(options.output, _LIST_COLUMNS, rows, "no groups")


# -- describe


def _describe_describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", nargs="+", metavar="GROUP")
    parser.add_argument(
        "--members", action="store_true", help="who is in it, instead of how far it is"
    )
    _connection_and_format(parser)


def _describe(options: argparse.Namespace) -> None:
    documents = []
    with connected(options) as cluster:
        from kbroker.client.admin.groups import by_member, progress

        for name in dict.fromkeys(options.group):
            state = _existing(cluster, name)
            rows = progress(cluster, name, by_member(state))
            documents.append(_document(state, rows))
    if options.output != "table":
        printed_document(options.output, documents)
    else:
        print("\n\n".join(_group_text(document, options.members) for document in documents))


def _existing(cluster: Cluster, name: str) -> GroupState:
    """Raises CommandFailed with the nearest name of a group that exists."""
    from kbroker.client.admin.groups import describe_group, list_groups
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode

    try:
        return describe_group(cluster, name)
    except RejectedError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        meant = nearest(name, [row.group for row in list_groups(cluster)])
        instead = f"; did you mean {meant}?" if meant else ""
        raise CommandFailed(f"group {name} does not exist{instead}") from error


def _document(state: GroupState, rows: Iterable[Progress]) -> dict[str, Any]:
    from kbroker.client.admin.groups import by_member

    members = by_member(state)
    partitions: list[dict[str, Any]] = []
    for row in rows:
        member = members.get((row.topic, row.partition))
        partitions.append(
            {
                "topic": row.topic,
                "partition": row.partition,
                "offset": row.offset,
                "end": row.end,
                "lag": row.lag,
                "member": member.member if member else None,
                "client": member.client if member else None,
                "host": member.host if member else None,
            }
        )
    return {
        "group": state.group,
        "type": state.kind,
        "state": state.state,
        "coordinator": state.coordinator,
        "assignor": state.assignor or None,
        "lag": sum(row["lag"] or 0 for row in partitions),
        "members": [
            {
                "member": member.member,
                "instance": member.instance or None,
                "client": member.client,
                "host": member.host,
                "partitions": [f"{topic}-{number}" for topic, number in member.partitions],
            }
            for member in sorted(state.members)
        ],
        "partitions": partitions,
    }


def _group_text(document: Mapping[str, Any], members: bool) -> str:
    count = len(document["members"])
    parts = [
        f"group {document['group']}: {document['state']}",
        f"{count} {'member' if count == 1 else 'members'}",
        f"lag {document['lag']}",
        f"coordinator {document['coordinator']}",
    ]
    if document["assignor"]:
        parts.append(f"assignor {document['assignor']}")
    columns, rows = _LAG_COLUMNS, document["partitions"]
    if members:
        columns, rows = _MEMBER_COLUMNS, document["members"]
    table = table_text(columns, rows) if rows else f"no {'members' if members else 'offsets'}"
    return ", ".join(map(shown, parts)) + "\n" + table


# -- delete


def _describe_delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", nargs="+", metavar="GROUP")
    parser.add_argument("--force", action="store_true", help="do not ask")
    add_connection(parser)


def _delete(options: argparse.Namespace) -> None:
    if not options.force and not sys.stdin.isatty():
        raise Usage("add --force to delete without being asked")
    names = list(dict.fromkeys(options.group))
    with connected(options) as cluster:
        from kbroker.client.admin.groups import delete_groups

        for name in names:
            _existing(cluster, name)
        if not options.force and not agreed(
            [f"group {name} with its offsets" for name in names], "Delete?"
        ):
            raise CommandFailed("nothing was deleted")
        results = delete_groups(cluster, names)
    for name, error in results.items():
        if error is None:
            print(f"deleted group {name}")
    if texts := [str(error) for error in results.values() if error is not None]:
        raise CommandFailed("; ".join(texts))


# -- reset

_RESET_EPILOG = """\
Without --execute nothing is changed: the new offsets are only shown. The group must have no
members. Offsets outside of a partition are moved to its start or end.

examples:
  kbroker group reset billing --topic orders --to-earliest
  kbroker group reset billing --all-topics --to-datetime 2026-11-27T08:00:00 --execute
  kbroker group reset billing --topic orders:0,1 --shift-by -100 --execute"""


def _describe_reset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        type=_topic,
        metavar="TOPIC[:0,1,...]",
        help="a topic, or some of its partitions; may be repeated",
    )
    parser.add_argument(
        "--all-topics", action="store_true", help="all partitions that the group has offsets of"
    )
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="to the first record there is")
    to.add_argument("--to-latest", action="store_true", help="to the end")
    to.add_argument("--to-current", action="store_true", help="to where the group is")
    to.add_argument("--to-offset", type=_offset, metavar="N", help="to this offset")
    to.add_argument(
        "--to-datetime", type=time_ms, metavar="TIME", help="to the first record after it (UTC)"
    )
    to.add_argument(
        "--by-duration",
        type=duration_ms,
        metavar="DURATION",
        help="to the first record that is not older, such as 2h",
    )
    to.add_argument(
        "--shift-by", type=_shift, metavar="N", help="so many records on, or back if negative"
    )
    parser.add_argument("--execute", action="store_true", help="do it")
    _connection_and_format(parser)


def _topic(text: str) -> tuple[str, list[int] | None]:
    name, colon, listed = text.partition(":")
    numbers = listed.split(",")
    if not name or (
        colon and not all(each.isascii() and each.isdigit() and len(each) < 10 for each in numbers)
    ):
        raise argparse.ArgumentTypeError(f"{text!r}: write TOPIC, or TOPIC:0,1")
    return name, [int(each) for each in numbers] if colon else None


def _shift(text: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    number = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 1 << 63
    if abs(number) > _OFFSET_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of records")
    return number


def _offset(text: str) -> int:
    number = _shift(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset")
    return number


def _reset(options: argparse.Namespace) -> None:
    if bool(options.topic) == options.all_topics:
        raise Usage("which partitions? Give --topic or --all-topics")
    with connected(options) as cluster:
        from kbroker.client.admin.groups import progress
        from kbroker.client.admin.offset_resets import new_offsets
        from kbroker.client.batches.offsets import commit

        partitions = _chosen(cluster, options.topic)
        rows = [
            row
            for row in progress(cluster, options.group, partitions)
            if options.all_topics or (row.topic, row.partition) in partitions
        ]
        if not rows:
            raise CommandFailed(f"group {options.group} has no offsets")
        wanted = new_offsets(cluster, rows, *_target(options))
        if options.execute:
            _refuse_members(cluster, options.group)
            commit(cluster, options.group, {key: (at, "") for key, at in wanted.items()})
    printed(
        options.output,
        _RESET_COLUMNS,
        [
            {
                "topic": row.topic,
                "partition": row.partition,
                "offset": row.offset,
                "new_offset": wanted[row.topic, row.partition],
            }
            for row in rows
            if (row.topic, row.partition) in wanted
        ],
    )
    if not options.execute:
        print("nothing was changed; add --execute to do it", file=sys.stderr)


def _chosen(
    cluster: Cluster, given: Iterable[tuple[str, list[int] | None]]
) -> dict[TopicPartition, None]:
    """Raises CommandFailed for a topic or partition that does not exist."""
    names = {name for name, _ in given}
    known = cluster.topics(names) if names else {}
    keys: dict[TopicPartition, None] = {}
    for name, numbers in given:
        if name not in known:
            raise CommandFailed(f"topic {name} does not exist")
        for number in known[name].partitions if numbers is None else numbers:
            if number not in known[name].partitions:
                raise CommandFailed(f"topic {name} has no partition {number}")
            keys[name, number] = None
    return keys


def _target(options: argparse.Namespace) -> tuple[str, int]:
    """Where to, and the value for it."""
    from kbroker.client.admin import offset_resets

    if options.to_datetime is not None:
        return offset_resets.TIME, options.to_datetime
    if options.by_duration is not None:
        return offset_resets.TIME, int(time.time() * 1000) - options.by_duration
    if options.to_offset is not None:
        return offset_resets.OFFSET, options.to_offset
    if options.to_current or options.shift_by is not None:
        return offset_resets.SHIFT, options.shift_by or 0
    return offset_resets.EARLIEST if options.to_earliest else offset_resets.LATEST, 0


def _refuse_members(cluster: Cluster, group: str) -> None:
    """Raises CommandFailed if the group has members."""
    from kbroker.client.admin.offset_resets import members_of

    count = members_of(cluster, group)
    if count:
        text = f"group {group} has {counted(count, 'member')}"
        raise CommandFailed(f"{text}: stop them, then reset its offsets")


# -- delete-offsets

_DELETE_OFFSETS_EPILOG = """\
Without --execute nothing is deleted: the offsets are only shown. The group goes on where
auto.offset.reset says, if it reads these partitions again. Topics that a member reads are refused.

examples:
  kbroker group delete-offsets billing old-orders
  kbroker group delete-offsets billing orders --partition 3 --execute"""


def _delete_offsets() -> Action:
    from kbroker.cli.operation_verbs import VerbView, actions_of
    from kbroker.console.api.group_offsets import OPERATIONS

    views = {"delete-offsets": VerbView(epilog=_DELETE_OFFSETS_EPILOG)}
    return actions_of(OPERATIONS, views)["delete-offsets"]


ACTIONS = {
    "list": Action("list groups", _describe_list, _list),
    "describe": Action("show members and lag", _describe_describe, _describe),
    "delete": Action("delete groups with their offsets", _describe_delete, _delete),
    "reset": Action("set the offsets of a group", _describe_reset, _reset, _RESET_EPILOG),
    "delete-offsets": deferred(
        "let a group have no offsets of a topic", _delete_offsets, _DELETE_OFFSETS_EPILOG
    ),
}
