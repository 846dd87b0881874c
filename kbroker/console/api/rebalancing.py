"""Reassignment by intent: empty brokers, spread topics, change a replication factor, balance.

Each answers a plan: what moves, how much that is, how long it takes at a throttle, and how many
replicas are in sync meanwhile. Without a dry run it is begun; ``reassignments`` shows how far it
is. Needs what Kafka has from 2.4 (KIP-455).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from kbroker.client.admin.cluster import ClusterState, describe_cluster
from kbroker.client.admin.configs import TOPIC, describe_configs
from kbroker.client.admin.partitions import in_requests, list_reassignments, log_dirs
from kbroker.client.admin.reassignments import alter_reassignments
from kbroker.client.admin.throttles import (
    RATES,
    Moves,
    alter_brokers,
    moves_of,
    nodes_of,
    release_topics,
    throttle_topics,
)
from kbroker.client.admin.topics import PartitionState
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError
from kbroker.console import replica_plan
from kbroker.console.move_answers import Plan, PlannedBroker, PlannedMove
from kbroker.console.operation import (
    BYTES,
    FLAG,
    INTEGER,
    INTEGERS,
    TEXT,
    TEXTS,
    CheckedRequest,
    Operation,
    Parameter,
)
from kbroker.console.problems import BadRequest, NotThere, Problem
from kbroker.console.replica_plan import Move, PlacedPartition, PlanRefused, ReplicaLayout
from kbroker.wording import counted

# What a broker may take to tell the sizes of its replicas.
SIZES_S = 5.0
_MIN_IN_SYNC = "min.insync.replicas"
_INTERNAL = "__"


class _Scene(NamedTuple):
    """sizes: bytes of the largest replica, of partitions of which they are known."""

    state: ClusterState
    partitions: Mapping[TopicPartition, PartitionState]
    sizes: Mapping[TopicPartition, int]
    layout: ReplicaLayout


def _scene(cluster: Cluster) -> _Scene:
    """What there is now. Raises Problem while partitions move: a plan would begin nowhere."""
    moving = list_reassignments(cluster)
    if moving:
        raise Problem(
            409,
            "REASSIGNMENT_IN_PROGRESS",
            f"{counted(len(moving), 'partition')} move already: wait for that (kbroker "
            "reassignment wait), or cancel it (kbroker reassignment cancel --all)",
        )
    state = describe_cluster(cluster)
    partitions = {
        (topic.name, row.partition): row for topic in state.topics for row in topic.partitions
    }
    sizes = _sizes(cluster)
    placed = {
        key: PlacedPartition(tuple(row.replicas), sizes.get(key, 0), frozenset(row.isr))
        for key, row in partitions.items()
    }
    racks = {row.node: row.rack for row in state.brokers}
    return _Scene(state, partitions, sizes, ReplicaLayout(racks, placed))


def _sizes(cluster: Cluster) -> dict[TopicPartition, int]:
    """Of brokers that do not answer, and without the right to describe the cluster, none. Other
    brokers know the sizes of most of what a broker has that is gone: it is not waited for.
    """
    sizes: dict[TopicPartition, int] = {}
    for node in cluster.nodes():
        try:
            with cluster.within(SIZES_S):
                dirs = log_dirs(cluster, [node])[node]
        except ClientError:
            continue
        for each in dirs:
            for key, replicas in each.replicas.items():
                for replica in replicas:
                    if not replica.future:
                        sizes[key] = max(sizes.get(key, 0), replica.size)
    return sizes


# -- intents


def _drain(asked: CheckedRequest) -> Plan:
    away, rack = set(asked.values["brokers"] or ()), asked.values["rack"]
    if not away and rack is None:
        raise BadRequest("which brokers? Name some, or a rack")
    scene = _scene(asked.cluster)
    with_replicas = {node for row in scene.layout.partitions.values() for node in row.nodes}
    for node in sorted(away):
        _check_broker(node, {*scene.layout.racks, *with_replicas})
    if rack is not None:
        of_rack = {node for node, each in scene.layout.racks.items() if each == rack}
        if not of_rack:
            known = sorted({each for each in scene.layout.racks.values() if each})
            there = f"there are {', '.join(known)}" if known else "no broker has one"
            raise NotThere(f"no rack {rack!r}: {there}")
        away |= of_rack
    what = f"drain {_brokers_text(away)}"
    return _planned(asked, what, scene, lambda: replica_plan.drain(scene.layout, away))


def _spread(asked: CheckedRequest) -> Plan:
    scene = _scene(asked.cluster)
    topics = _topics(scene, asked.values["topics"])
    nodes = asked.values["brokers"]
    for node in nodes or ():
        _check_broker(node, scene.layout.racks)
    over = "all brokers" if nodes is None else _brokers_text(set(nodes))
    what = f"spread {_named(topics)} over {over}"
    chosen = None if nodes is None else set(nodes)
    return _planned(asked, what, scene, lambda: replica_plan.spread(scene.layout, topics, chosen))


def _replicate(asked: CheckedRequest) -> Plan:
    scene = _scene(asked.cluster)
    topics = _topics(scene, asked.values["topics"])
    factor = asked.values["factor"]
    for name, least in _min_in_sync(asked.cluster, topics).items():
        if least > factor:
            raise BadRequest(
                f"topic {name} has {_MIN_IN_SYNC}={least}: with {counted(factor, 'replica')}, "
                "acks=all is rejected while one is away, and always before Kafka 3.9; "
                f"lower it first (kbroker config set topic {name} {_MIN_IN_SYNC}={factor})"
            )
    what = f"replication factor {factor} for {_named(topics)}"
    return _planned(
        asked, what, scene, lambda: replica_plan.replication(scene.layout, topics, factor)
    )


def _balance(asked: CheckedRequest) -> Plan:
    scene = _scene(asked.cluster)
    return _planned(asked, "balance", scene, lambda: replica_plan.balance(scene.layout))


def _check_broker(node: int, known: Iterable[int]) -> None:
    if node not in known:
        raise NotThere(f"no broker {node}: there are {', '.join(map(str, sorted(known)))}")


def _topics(scene: _Scene, patterns: Iterable[str]) -> list[str]:
    """Those that match any of these; internal ones only if the pattern begins as they do."""
    matching: set[str] = set()
    for pattern in patterns:
        names = [
            topic.name
            for topic in scene.state.topics
            if fnmatchcase(topic.name, pattern)
            and (not topic.internal or pattern.startswith(_INTERNAL))
        ]
        if not names:
            raise NotThere(f"no topic {pattern!r}: kbroker topic list shows what there is")
        matching.update(names)
    return sorted(matching)


def _named(topics: list[str]) -> str:
    return f"topic {topics[0]}" if len(topics) == 1 else f"{len(topics)} topics"


# -- plans


def _planned(
    asked: CheckedRequest, what: str, scene: _Scene, plan: Callable[[], list[Move]]
) -> Plan:
    """The document of a plan, which has been begun unless it is a dry run."""
    _check_running(asked.values["running"], scene.layout.racks)
    try:
        moves = plan()
    except PlanRefused as error:
        raise Problem(409, "NO_SUCH_PLAN", str(error)) from None
    for move in moves:
        if move.added and scene.partitions[move.key].leader is None:
            name = f"{move.key[0]}-{move.key[1]}"
            raise Problem(
                409,
                "LEADER_NOT_AVAILABLE",
                f"{name} has no leader to copy from: start one of its brokers first ("
                f"{', '.join(map(str, move.before))})",
            )
    throttle, dry_run = asked.values["throttle"], asked.values["dry_run"]
    least = _min_in_sync(asked.cluster, sorted({move.key[0] for move in moves}))
    brokers = _brokers(scene, moves)
    known = all(move.key in scene.sizes for move in moves if move.added)
    seconds = None
    if throttle and known:
        # Each broker may send and receive so much at once: the busiest one decides.
        seconds = max((max(row["sends"], row["receives"]) for row in brokers), default=0) / throttle
    rows = [_row(scene, move, least) for move in moves]
    if not dry_run and moves:
        _begin(asked.cluster, moves, throttle)
    return {
        "intent": what,
        "dry_run": dry_run,
        "partitions": len(moves),
        "bytes": sum(move.size for move in moves) if known else None,
        "throttle": throttle,
        "seconds": seconds,
        "below_min_in_sync": sum(row["in_sync"] < (row["min_in_sync"] or 0) for row in rows),
        "running": sorted(scene.layout.racks),
        "brokers": brokers,
        "moves": rows,
    }


def _check_running(shown: list[int] | None, now: Collection[int]) -> None:
    """shown: the brokers of the plan that somebody has seen. Raises Problem if others run now."""
    if shown is None:
        return
    left, come = sorted(set(shown).difference(now)), sorted(set(now).difference(shown))
    if left or come:
        what = _left(left) if left else f"{_brokers_text(come)} came"
        text = f"{what} since the plan was shown: look at the plan again"
        raise Problem(409, "PLAN_CHANGED", text)


def _left(nodes: list[int]) -> str:
    return f"{_brokers_text(nodes)} left"


def _brokers_text(nodes: Collection[int]) -> str:
    return f"{'brokers' if len(nodes) > 1 else 'broker'} {', '.join(map(str, sorted(nodes)))}"


def _row(scene: _Scene, move: Move, least: Mapping[str, int]) -> PlannedMove:
    """in_sync: the fewest replicas in sync until the end. The old ones are kept until all new ones
    are in sync, so it is those of now, or those of the end if that are fewer. min_in_sync: all
    replicas, if the setting is above their number.
    """
    in_sync = len(scene.partitions[move.key].isr)
    setting = least.get(move.key[0])
    return {
        "topic": move.key[0],
        "partition": move.key[1],
        "from": list(move.before),
        "to": list(move.after),
        "bytes": move.size if not move.added or move.key in scene.sizes else None,
        "in_sync": min(in_sync, len(move.after)),
        "min_in_sync": None if setting is None else min(setting, len(move.after)),
    }


def _brokers(scene: _Scene, moves: Iterable[Move]) -> list[PlannedBroker]:
    """Of each broker: replicas, and partitions that it is the preferred leader of, now and then;
    bytes to send and to receive.
    """
    layout = scene.layout
    before = {key: row.nodes for key, row in layout.partitions.items()}
    after = before | {move.key: move.after for move in moves}
    sends: Counter[int] = Counter()
    receives: Counter[int] = Counter()
    for move in moves:
        leader = scene.partitions[move.key].leader
        for node in move.added:
            receives[node] += layout.partitions[move.key].size
            if leader is not None:
                sends[leader] += layout.partitions[move.key].size
    replicas, replicas_then = (
        Counter(node for nodes in placed.values() for node in nodes) for placed in (before, after)
    )
    leads, leads_then = (
        Counter(nodes[0] for nodes in placed.values() if nodes) for placed in (before, after)
    )
    return [
        {
            "broker": node,
            "rack": layout.racks.get(node),
            "replicas": replicas[node],
            "replicas_then": replicas_then[node],
            "leads": leads[node],
            "leads_then": leads_then[node],
            "sends": sends[node],
            "receives": receives[node],
        }
        for node in sorted({*layout.racks, *replicas})
    ]


def _min_in_sync(cluster: Cluster, topics: list[str]) -> dict[str, int]:
    """Of topics whose settings this user may read."""
    minimums = {}
    for some in in_requests(topics):
        described = describe_configs(cluster, TOPIC, some, [_MIN_IN_SYNC])
        for name, rows in described.items():
            for row in rows if isinstance(rows, list) else ():
                if row.name == _MIN_IN_SYNC and row.value is not None:
                    minimums[name] = int(row.value)
    return minimums


def _begin(cluster: Cluster, moves: list[Move], throttle: int | None) -> None:
    """Raises Problem if a partition is rejected; others may have begun."""
    wanted = {move.key: list(move.after) for move in moves}
    throttled: Moves = {}
    if throttle is not None:
        current = {move.key: list(move.before) for move in moves}
        throttled = moves_of({}, {move.key: move.after for move in moves if move.added}, current)
        throttle_topics(cluster, throttled)
        alter_brokers(cluster, nodes_of(throttled), dict.fromkeys(RATES, str(throttle)))
    begun = 0
    for keys in in_requests(list(wanted)):
        some = {key: wanted[key] for key in keys}
        errors = [row for row in alter_reassignments(cluster, some).values() if row is not None]
        begun += len(some) - len(errors)
        if errors:
            added = {node for move in moves for node in move.added}
            left = sorted(added.difference(cluster.nodes()))
            why = f"{_left(left)} meanwhile" if left else str(errors[0])
            raise Problem(409, errors[0].name, _not_begun(cluster, begun, wanted, throttled, why))


def _not_begun(
    cluster: Cluster, begun: int, wanted: Collection[TopicPartition], throttled: Moves, why: str
) -> str:
    """In words; nothing of a plan is left if none of it has begun."""
    if begun:
        undone = "kbroker reassignment cancel --all undoes them"
        return f"begun {begun} of {counted(len(wanted), 'move')}: {why}; {undone}"
    release_topics(cluster, throttled)
    alter_brokers(cluster, nodes_of(throttled), dict.fromkeys(RATES))
    return f"nothing was begun: {why}"


# -- the table

_NEEDS = "ALTER on the cluster, with a throttle ALTER_CONFIGS on it and on the topics"
_HOW = (
    Parameter(
        "throttle",
        BYTES,
        "Bytes a second that each broker sends and receives for it; no limit, if left out.",
        low=1,
    ),
    Parameter("dry_run", FLAG, "Only show the plan.", True),
    Parameter(
        "running",
        INTEGERS,
        "Of the plan that was shown: nothing is begun if other brokers run now.",
        names="broker",
    ),
)
_TOPICS = Parameter(
    "topics",
    TEXTS,
    "Names, in which * and ? stand for others; internal topics, if it begins with __.",
    required=True,
    length_max=249,
    names="topic",
)


def _intent(
    name: str,
    summary: str,
    serve: Callable[[CheckedRequest], Plan],
    parameters: tuple[Parameter, ...] = (),
    positional: tuple[str, ...] = (),
) -> Operation:
    return Operation(
        "POST",
        f"/cluster/{name}",
        summary,
        serve,
        Plan,
        body=(*parameters, *_HOW),
        needs=_NEEDS,
        verb=f"cluster {name}",
        positional=positional,
    )


OPERATIONS = (
    _intent(
        "drain",
        "Move everything off brokers, to take them out of the cluster",
        _drain,
        (
            Parameter("brokers", INTEGERS, "Which; they may be down.", names="broker"),
            Parameter("rack", TEXT, "All brokers of this rack.", length_max=1000),
        ),
        ("brokers",),
    ),
    _intent(
        "balance",
        "Give each broker as many replicas, and as many partitions to lead, as the others",
        _balance,
    ),
    _intent(
        "spread",
        "Spread the partitions of topics over all brokers, or over some",
        _spread,
        (
            _TOPICS,
            Parameter("brokers", INTEGERS, "Only over these; all, if left out.", names="broker"),
        ),
        ("topics",),
    ),
    _intent(
        "replication",
        "Change the replication factor of topics",
        _replicate,
        (
            Parameter(
                "factor", INTEGER, "How many replicas.", required=True, low=1, high=(1 << 15) - 1
            ),
            _TOPICS,
        ),
        ("factor", "topics"),
    ),
)
