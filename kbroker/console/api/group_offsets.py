"""Offsets of groups that are deleted."""

from __future__ import annotations

from kbroker.client.admin.groups import delete_offsets
from kbroker.client.batches.offsets import committed
from kbroker.console.answers import DeletedOffsets
from kbroker.console.operation import (
    FLAG,
    INTEGERS,
    TEXT,
    CheckedRequest,
    Operation,
    Parameter,
)
from kbroker.console.problems import NotThere


def _delete(asked: CheckedRequest) -> DeletedOffsets:
    values = asked.values
    group, topic, numbers = values["group"], values["topic"], values["partitions"]
    rows = committed(asked.cluster, group, stable=False)
    if not rows:
        raise NotThere(f"group {group} has no offsets")
    keys = [
        key for key in sorted(rows) if key[0] == topic and (numbers is None or key[1] in numbers)
    ]
    missing = [number for number in numbers or () if (topic, number) not in rows]
    if not keys or missing:
        what = f"{topic}-{missing[0]}" if missing else f"topic {topic}"
        known = ", ".join(sorted({name for name, _ in rows}))
        raise NotThere(f"group {group} has no offset of {what}, but of {known}")
    if not values["dry_run"]:
        delete_offsets(asked.cluster, group, keys)
    return {
        "group": group,
        "dry_run": values["dry_run"],
        "partitions": [
            {"topic": key[0], "partition": key[1], "offset": rows[key].offset} for key in keys
        ],
    }


OPERATIONS = (
    Operation(
        "POST",
        "/group/offsets/delete",
        "Let a group have no offsets of a topic",
        _delete,
        DeletedOffsets,
        body=(
            Parameter("group", TEXT, "Its id.", required=True, length_max=1000, names="group"),
            Parameter("topic", TEXT, "Its name.", required=True, length_max=249, names="topic"),
            Parameter("partitions", INTEGERS, "Only of these; all, if left out."),
            Parameter("dry_run", FLAG, "Only say what would be deleted.", True),
        ),
        needs="DELETE on the group, DESCRIBE on the group, READ on the topic",
        verb="group delete-offsets",
        positional=("group", "topic"),
    ),
)
