"""The tables of ``kafka-consumer-groups --describe``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given

if TYPE_CHECKING:
    from kbroker.client.admin.groups import GroupState, Member
    from kbroker.client.batches.offsets import Committed, TopicPartition
    from kbroker.client.connections.cluster import Cluster

_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
_KNOWN = (*_REBALANCING, "Stable", "Empty", "Dead")
MISSING = "-"


def describe(given: Given, cluster: Cluster, groups: Iterable[str]) -> None:
    """Print what ``--offsets``, ``--members`` or ``--state`` asks for. Raises RejectedError."""
    from kbroker.client.admin.groups import describe_group

    states = [describe_group(cluster, group) for group in sorted(groups)]
    verbose = "verbose" in given
    if "members" in given:
        for state in states:
            _print_members(state, verbose)
    elif "state" in given:
        for state in states:
            _print_state(cluster, state, verbose)
    else:
        rows = [_offset_rows(cluster, state) for state in states]
        for state, offsets in zip(states, rows, strict=True):
            _print_offsets(state, offsets, verbose)


def _has_rows(state: GroupState, count: int) -> bool:
    """Say what keeps a group from having any, on stderr; whether there is a table to print."""
    from kbroker.cli.kafka.consumer_groups import GroupsToolError, print_error

    group = state.group
    if state.state == "Dead":
        print_error(f"Consumer group '{group}' does not exist.")
        return False
    if state.state not in _KNOWN:
        raise GroupsToolError(f"Expected a valid consumer group state, but found '{state.state}'.")
    if state.state == "Empty":
        sys.stdout.flush()
        print(f"\nConsumer group '{group}' has no active members.", file=sys.stderr)
    if state.state in _REBALANCING:
        sys.stdout.flush()
        print(f"\nWarning: Consumer group '{group}' is rebalancing.", file=sys.stderr)
    return count > 0


def _text(value: object) -> str:
    return MISSING if value is None else str(value)


# -- offsets

Row = tuple[str, ...]


def _offset_rows(cluster: Cluster, state: GroupState) -> list[Row]:
    from kbroker.client.batches.offsets import LATEST, committed, list_offsets

    offsets = committed(cluster, state.group, stable=False)
    assigned = [key for member in state.members for key in member.partitions]
    known = cluster.topics({topic for topic, _ in [*offsets, *assigned]})
    led = [
        (topic, number)
        for topic, number in dict.fromkeys([*offsets, *assigned])
        if topic in known
        and number in known[topic].partitions
        and known[topic].partitions[number].leader is not None
    ]
    ends = {
        key: row.offset for key, row in list_offsets(cluster, dict.fromkeys(led, LATEST)).items()
    }
    rows: list[Row] = []
    for member in sorted(state.members, key=lambda each: -len(each.partitions)):
        names = member.member, member.host, member.client
        rows += [_offset_row(state.group, key, offsets, ends, names) for key in member.partitions]
    nobody = MISSING, MISSING, MISSING
    rest = sorted(set(offsets) - set(assigned))
    return rows + [_offset_row(state.group, key, offsets, ends, nobody) for key in rest]


def _offset_row(
    group: str,
    key: TopicPartition,
    offsets: dict[TopicPartition, Committed],
    ends: dict[TopicPartition, int],
    names: tuple[str, str, str],
) -> Row:
    row, end = offsets.get(key), ends.get(key)
    epoch = row.leader_epoch if row is not None and row.leader_epoch >= 0 else None
    offset = row.offset if row is not None else None
    lag = end - offset if end is not None and offset is not None else None
    return (group, key[0], str(key[1]), *map(_text, (epoch, offset, end, lag)), *names)


_OFFSET_TITLES = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "LEADER-EPOCH",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)


def _print_offsets(state: GroupState, rows: list[Row], verbose: bool) -> None:
    if not _has_rows(state, len(rows)):
        return
    group, topic, member, host = (max([15, *(len(row[at]) for row in rows)]) for at in (0, 1, 7, 8))
    widths = (group, topic, 10, 15, 15, 15, 15, member, host, 0)
    for row in [_OFFSET_TITLES, *rows]:
        cells = [f"{text:<{width}}" for text, width in zip(row, widths, strict=True)]
        if not verbose:
            del cells[3]
        print("\n" + " ".join(cells), end="")
    print()


# -- members


def assignment_text(partitions: Iterable[TopicPartition]) -> str:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    texts = [f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items()]
    return ";".join(sorted(texts)) or MISSING


def _print_members(state: GroupState, verbose: bool) -> None:
    members = state.members
    shown = members if _has_rows(state, len(members)) else []
    instance = any(member.instance for member in shown)
    kinds = {member.kind for member in shown}
    mixed = {"classic", "consumer"} <= kinds
    columns: list[tuple[int, str, Callable[[Member], str]]] = [
        (15, "GROUP", lambda member: state.group),
        (15, "CONSUMER-ID", lambda member: member.member),
        (17, "GROUP-INSTANCE-ID", lambda member: member.instance),
        (15, "HOST", lambda member: member.host),
        (15, "CLIENT-ID", lambda member: member.client),
    ]
    if not instance:
        del columns[2]
    rows = [[title for _, title, _ in columns]]
    rows += [[text(member) for _, _, text in columns] for member in members]
    # As wide as what is printed; of a group without a table, as wide as nothing.
    measured = rows[1:] if shown else []
    widths = [
        max([least, *(len(row[at]) for row in measured)])
        for at, (least, _, _) in enumerate(columns)
    ]
    counts = ["#PARTITIONS", *(str(len(member.partitions)) for member in members)]
    details = _member_details(state, members, shown, mixed) if verbose else [""] * len(rows)
    print()
    for row, count, detail in zip(rows, counts, details, strict=True):
        cells = [f"{text:<{width}}" for text, width in zip(row, widths, strict=True)]
        print(" ".join(cells) + f" {count:<15} {detail}")


def _member_details(
    state: GroupState, members: list[Member], shown: list[Member], mixed: bool
) -> list[str]:
    rows = [
        ("CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED")
    ]
    for member in members:
        rows.append(
            (
                _text(member.epoch),
                assignment_text(member.partitions),
                _text(state.assignment_epoch),
                assignment_text(member.target),
                _upgraded(member),
            )
        )
    measured = rows[1:] if shown else []
    now, then = (max([20, *(len(row[at]) for row in measured)]) for at in (1, 3))
    lines = []
    for row in rows:
        line = f"{row[0]:<15} {row[1]:<{now}} {row[2]:<15} {row[3]:<{then}}"
        lines.append(f"{line} {row[4]}" if mixed else line)
    return lines


def _upgraded(member: Member) -> str:
    return {"classic": "false", "consumer": "true"}.get(member.kind, MISSING)


# -- state


def _print_state(cluster: Cluster, state: GroupState, verbose: bool) -> None:
    if not _has_rows(state, 1):
        return
    address = cluster.address(state.coordinator)
    host, port = address or ("", -1)
    coordinator = f"{host}:{port}  ({state.coordinator})"
    group_width, width = max(15, len(state.group)), max(25, len(coordinator))
    rows = [("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE")]
    rows.append((state.group, coordinator, state.assignor or MISSING, state.state))
    epochs = [("GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH")]
    epochs.append((_text(state.epoch), _text(state.assignment_epoch)))
    counts = ["#MEMBERS", str(len(state.members))]
    for row, (epoch, target), count in zip(rows, epochs, counts, strict=True):
        line = f"{row[0]:<{group_width}} {row[1]:<{width}} {row[2]:<20} {row[3]:<20}"
        line += f" {epoch:<15} {target:<25}" if verbose else ""
        print(f"\n{line} {count}", end="")
    print()
