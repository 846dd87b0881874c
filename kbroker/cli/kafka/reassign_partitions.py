"""``kafka-reassign-partitions``: move partitions to other brokers, and replicas to other log
directories.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kbroker.cli.kafka import reassignment_throttles as throttles
from kbroker.cli.kafka.options import Given, WrongUse, flag, valued
from kbroker.cli.kafka.reassignment_files import as_json, duplicates, read_topics, read_wanted
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed
from kbroker.cli.kafka.zookeeper import ZOOKEEPER, connected_either

if TYPE_CHECKING:
    from kbroker.client.admin.reassignments import PartitionReplica
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.connections.cluster import Cluster

_ACTIONS = ("generate", "execute", "verify", "cancel", "list")
_EVERYWHERE = ("bootstrap-server", "zookeeper", "command-config")
# What each action needs, and what else it takes.
_NEEDS = {
    "verify": ("reassignment-json-file",),
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",),
    "cancel": ("reassignment-json-file",),
    "list": (),
}
_TAKES = {
    "verify": ("preserve-throttles",),
    "generate": ("disable-rack-aware",),
    "execute": (
        "additional", "throttle", "replica-alter-log-dirs-throttle", "timeout",
        "disallow-replication-factor-change",
    ),
    "cancel": ("preserve-throttles", "timeout"),
    "list": (),
}  # fmt: skip
_PAUSE_S = 0.1

OPTIONS = (
    BOOTSTRAP._replace(argument="Server(s) to use for bootstrapping", optional=True),
    valued("bootstrap-controller", "bootstrap controller to connect to", "Refused: brokers of "
           "kbroker take all requests.", optional=True),
    ZOOKEEPER,
    valued("command-config", "Admin client property file", "A file with settings of a client."),
    flag("generate", "Print where partitions could go; nothing is moved."),
    flag("execute", "Begin what --reassignment-json-file says."),
    flag("verify", "Print how far it is; when it is done, remove the throttles."),
    flag("cancel", "Cancel what --reassignment-json-file says."),
    flag("list", "Print the reassignments in progress."),
    valued(
        "reassignment-json-file",
        "manual assignment json file path",
        'A file with the replicas of partitions, as\n{"partitions":\n\t[{"topic": "foo",\n\t  '
        '"partition": 1,\n\t  "replicas": [1,2,3],\n\t  "log_dirs": ["any","any","/disk2"] }],\n'
        '"version":1\n}\nwhere log_dirs may be left out.',
    ),
    valued(
        "topics-to-move-json-file",
        "topics to reassign json file path",
        'With --generate, a file with topics, as\n{"topics":\n\t[{"topic": "foo"},{"topic": "foo1"'
        '}],\n"version":1\n}',
    ),
    valued("broker-list", "brokerlist", 'With --generate, the brokers to move to, as "0,1,2".'),
    flag("disable-rack-aware", "With --generate, do not look at racks."),
    valued(
        "throttle",
        "throttle",
        "With --execute, the most bytes a second between brokers. With --additional and the "
        "same file again, it is changed.",
        kind=int,
        long=True,
        default="-1",
    ),
    valued(
        "replica-alter-log-dirs-throttle",
        "replicaAlterLogDirsThrottle",
        "With --execute, the most bytes a second between log directories of a broker.",
        kind=int,
        long=True,
        default="-1",
    ),
    valued(
        "timeout",
        "timeout",
        "How many ms the moves to other log directories may take to begin.",
        kind=int,
        long=True,
        default="10000",
    ),
    flag("additional", "With --execute, also while other reassignments are in progress."),
    flag("preserve-throttles", "Leave the throttles as they are."),
    flag("disallow-replication-factor-change", "Reject another number of replicas than now."),
)  # fmt: skip


def _check(given: Given) -> str:
    """The action. Raises WrongUse."""
    actions = [name for name in _ACTIONS if name in given]
    if len(actions) != 1:
        listed = ", ".join(f"--{name}" for name in _ACTIONS)
        raise WrongUse(f"Command must include exactly one action: {listed}")
    if given.count(("bootstrap-server", "bootstrap-controller")) == 2:
        raise WrongUse("Please don't specify both --bootstrap-server and --bootstrap-controller")
    if not given.count(("bootstrap-server", "bootstrap-controller", "zookeeper")):
        raise WrongUse("Please specify either --bootstrap-server or --bootstrap-controller")
    action = actions[0]
    given.require(*_NEEDS[action])
    allowed = {action, *_NEEDS[action], *_TAKES[action], *_EVERYWHERE, "bootstrap-controller"}
    for name in given.known:
        if name in given and name not in allowed:
            raise WrongUse(f'Option "[{name}]" can\'t be used with action "[{action}]"')
    if "bootstrap-controller" in given:
        raise ToolFailed("there are no controllers to connect to: use --bootstrap-server")
    return action


def _run(given: Given) -> int:
    from kbroker.cli.kafka.java_words import java_text
    from kbroker.client.errors import ClientError

    action = _check(given)
    try:
        with connected_either(given) as cluster:
            _WORK[action](given, cluster)
    except throttles.Said as error:
        print(error)
        return 1
    except (ClientError, ToolFailed) as error:
        print(f"Error: {java_text(error) if isinstance(error, ClientError) else error}")
        return 1
    return 0


# -- generate


def _generate(given: Given, cluster: Cluster) -> None:
    from kbroker.replica_placement import PlacementError, place_replicas

    nodes = _nodes(given.one("broker-list"))
    topics = read_topics(given.one("topics-to-move-json-file"))
    current = _replicas_of(cluster, topics)
    racks = _racks(cluster, nodes, aware="disable-rack-aware" not in given)
    proposed: dict[TopicPartition, list[int]] = {}
    for topic in topics:
        numbers = [number for name, number in current if name == topic]
        try:
            placed = place_replicas(racks, len(numbers), len(current[topic, min(numbers)]))
        except PlacementError as error:
            raise ToolFailed(str(error)) from error
        proposed |= {(topic, number): row for number, row in enumerate(placed)}
    dirs = _dirs(given, cluster, current)
    between = "\n\n" if dirs is None else "\n"
    print(f"Current partition replica assignment{between}{as_json(current, dirs)}\n")
    anywhere = as_json(proposed, None if dirs is None else {})
    print(f"Proposed partition reassignment configuration{between}{anywhere}")


def _dirs(
    given: Given, cluster: Cluster, replicas: Mapping[TopicPartition, list[int]]
) -> dict[PartitionReplica, str] | None:
    """Where they are, those of running brokers; None with ``--zookeeper``."""
    from kbroker.client.admin.reassignments import PartitionReplica, replica_dirs

    if "zookeeper" in given:
        return None
    running = set(cluster.nodes())
    keys = [
        PartitionReplica(topic, number, node)
        for (topic, number), nodes in replicas.items()
        for node in nodes
        if node in running
    ]
    dirs = replica_dirs(cluster, keys)
    return {key: row.current for key, row in dirs.items() if row.current is not None}


def _nodes(text: str) -> list[int]:
    """Raises ToolFailed."""
    try:
        nodes = [int(part) for part in text.split(",")]
    except ValueError:
        raise ToolFailed(f'For input string: "{text}"') from None
    if twice := duplicates(nodes):
        raise ToolFailed(f"Broker list contains duplicate entries: [{', '.join(map(str, twice))}]")
    return nodes


def _racks(cluster: Cluster, nodes: list[int], *, aware: bool) -> dict[int, str | None]:
    """Those of the brokers that there are. Raises ToolFailed."""
    from kbroker.client.admin.cluster import summarize_cluster

    known = {row.node: row.rack for row in summarize_cluster(cluster).brokers}
    racks = {node: known[node] if aware else None for node in nodes if node in known}
    without = sum(rack is None for rack in racks.values())
    if without not in (0, len(racks)):
        raise ToolFailed(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to "
            "make replica assignment without rack information."
        )
    return racks


def _replicas_of(cluster: Cluster, topics: Iterable[str]) -> dict[TopicPartition, list[int]]:
    """Raises RejectedError."""
    from kbroker.client.admin.topics import describe_topics
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode

    replicas: dict[TopicPartition, list[int]] = {}
    for name in dict.fromkeys(topics):
        try:
            [state] = describe_topics(cluster, [name])
        except RejectedError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            said = f"Topic {name} not found."
            raise RejectedError(error.code, f"topic {name}", said) from error
        replicas |= {(name, row.partition): row.replicas for row in state.partitions}
    return replicas


# -- execute


def _execute(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.partitions import list_reassignments
    from kbroker.client.admin.reassignments import alter_reassignments

    wanted = read_wanted(given.one("reassignment-json-file"))
    proposed = wanted.replicas()
    moving = list_reassignments(cluster)
    if moving and "additional" not in given:
        raise throttles.Said(
            "Cannot execute because there is an existing partition assignment.  Use --additional "
            "to override this and create a new partition assignment in addition to the existing "
            "one. The --additional flag can also be used to change the throttle by resubmitting "
            "the current reassignment."
        )
    _check_nodes(cluster, proposed)
    current = _current(cluster, proposed)
    dirs = _dirs(given, cluster, current)
    print(f"Current partition replica assignment\n\n{as_json(current, dirs)}\n")
    print("Save this to use as the --reassignment-json-file option during rollback")
    between, within = given.one("throttle"), given.one("replica-alter-log-dirs-throttle")
    if max(between, within) >= 0:
        throttles.engage(cluster, moving, proposed, current, list(wanted.dirs), between, within)
    errors = alter_reassignments(
        cluster,
        proposed,
        factor_may_change="disallow-replication-factor-change" not in given,
    )
    throttles.raise_errors("Error reassigning partition(s):", errors)
    if dirs is None:
        print(f"Successfully started reassignment of partitions\n{as_json(proposed, None)}")
    else:
        many = "" if len(proposed) == 1 else "s"
        print(f"Successfully started partition reassignment{many} for {_listed(proposed)}")
    if wanted.dirs:
        _move_dirs(cluster, wanted.dirs, given.one("timeout"))


def _check_nodes(cluster: Cluster, proposed: Mapping[TopicPartition, list[int]]) -> None:
    """Raises ToolFailed."""
    from kbroker.cli.kafka.java_words import hash_order

    known = set(cluster.nodes())
    nodes = hash_order((node for row in proposed.values() for node in row), lambda node: node)
    for node in nodes:
        if node not in known:
            raise ToolFailed(f"Unknown broker id {node}")


def _current(
    cluster: Cluster, proposed: Mapping[TopicPartition, list[int]]
) -> dict[TopicPartition, list[int]]:
    """Raises RejectedError."""
    from kbroker.client.errors import RejectedError
    from kbroker.errors import ErrorCode

    current = _replicas_of(cluster, [topic for topic, _ in proposed])
    if missing := [key for key in proposed if key not in current]:
        listed = ", ".join(f"{topic}-{number}" for topic, number in missing)
        raise RejectedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "reassign", f"Unable to find partition: {listed}"
        )
    return {key: current[key] for key in proposed}


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ",".join(f"{topic}-{number}" for topic, number in sorted(partitions))


def _move_dirs(cluster: Cluster, paths: Mapping[PartitionReplica, str], timeout_ms: int) -> None:
    """Begin these moves. A replica that its broker does not have yet is asked for again. Raises
    Said, Failed.
    """
    from kbroker.cli.kafka.java_words import java_text
    from kbroker.client.admin.reassignments import alter_replica_log_dirs
    from kbroker.errors import ErrorCode

    left = dict(paths)
    until = time.monotonic() + timeout_ms / 1000
    while True:
        results = alter_replica_log_dirs(cluster, left)
        for replica in sorted(results, key=_by_node):
            error = results[replica]
            if error is None:
                print(
                    f"Successfully started moving log directory to {left.pop(replica)} for replica "
                    f"{replica.topic}-{replica.partition} with broker {replica.node} "
                )
            elif error.code != ErrorCode.REPLICA_NOT_AVAILABLE:
                print(java_text(error), file=sys.stderr)
                raise ToolFailed(f"Failed to alter dir for {replica}")
        if not left:
            return
        if time.monotonic() >= until:
            many = "" if len(left) == 1 else "s"
            listed = ",".join(map(str, sorted(left, key=_by_node)))
            raise throttles.Said(
                f"Timed out before log directory move{many} could be started for: {listed}"
            )
        time.sleep(_PAUSE_S)


def _by_node(replica: PartitionReplica) -> tuple[int, str, int]:
    return replica.node, replica.topic, replica.partition


# -- verify


def _verify(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.partitions import list_reassignments
    from kbroker.client.admin.reassignments import replica_dirs

    wanted = read_wanted(given.one("reassignment-json-file"))
    moving = list_reassignments(cluster)
    current = _present(cluster, {key[0] for key, _ in wanted.partitions if key not in moving})
    print("Status of partition reassignment:")
    say = _state_line_of_zookeeper if "zookeeper" in given else _state_line
    for key, nodes in sorted(dict(wanted.partitions).items()):
        print(say(key, nodes, None if key in moving else current.get(key, [])))
    if "zookeeper" in given and not wanted.dirs:
        ongoing = bool(moving)
    else:
        dirs = replica_dirs(cluster, wanted.dirs)
        lines = [
            _dir_line(replica, wanted.dirs[replica], dirs[replica].current, dirs[replica].future)
            for replica in sorted(wanted.dirs, key=_by_node)
        ]
        print("\n".join(lines))
        ongoing = bool(moving) or any(row.future is not None for row in dirs.values())
    if not ongoing and "preserve-throttles" not in given:
        throttles.clear(cluster, dict(wanted.partitions), silently="zookeeper" in given)


def _present(cluster: Cluster, topics: set[str]) -> dict[TopicPartition, list[int]]:
    """The replicas of those that exist."""
    from kbroker.client.admin.topics import list_topics

    return {
        (state.name, row.partition): row.replicas
        for state in (list_topics(cluster) if topics else ())
        if state.name in topics
        for row in state.partitions
    }


def _state_line(key: TopicPartition, target: list[int], current: list[int] | None) -> str:
    """current: None while it is being moved."""
    name = f"{key[0]}-{key[1]}"
    if current is None:
        return f"Reassignment of partition {name} is still in progress."
    if current == target:
        return f"Reassignment of partition {name} is completed."
    now, then = ",".join(map(str, current)), ",".join(map(str, target))
    return (
        f"There is no active reassignment of partition {name}, but replica set is {now} rather "
        f"than {then}."
    )


def _state_line_of_zookeeper(
    key: TopicPartition, target: list[int], current: list[int] | None
) -> str:
    if current is None:
        state = "is in progress"
    else:
        state = "completed successfully" if current == target else "failed"
    line = f"Reassignment of partition [{key[0]},{key[1]}] {state}"
    if state != "failed":
        return line
    now, then = ",".join(map(str, current or ())), ",".join(map(str, target))
    return (
        f"ERROR: Assigned replicas ({now}) don't match the list of replicas for reassignment "
        f"({then}) for partition [{key[0]},{key[1]}]\n{line}"
    )


def _dir_line(
    replica: PartitionReplica, target: str, current: str | None, future: str | None
) -> str:
    name = f"Partition {replica.topic}-{replica.partition}"
    if current is None:
        return (
            f"{name} is not found in any live log dir on broker {replica.node}. There is likely an "
            "offline log directory on the broker."
        )
    if future is None and current == target:
        return f"Reassignment of replica {replica} completed successfully."
    if future is None:
        return (
            f"{name} on broker {replica.node} is not being moved from log dir {current} to "
            f"{target}."
        )
    if future == target:
        return f"Reassignment of replica {replica} is still in progress."
    return (
        f"{name} on broker {replica.node} is being moved to log dir {future} instead of {target}."
    )


# -- cancel and list


def _cancel(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.partitions import list_reassignments
    from kbroker.client.admin.reassignments import alter_reassignments, replica_dirs

    wanted = read_wanted(given.one("reassignment-json-file"))
    partitions = dict(wanted.partitions)
    moving = list_reassignments(cluster, partitions)
    if moving:
        errors = alter_reassignments(cluster, dict.fromkeys(moving))
        many = "" if sum(error is not None for error in errors.values()) == 1 else "s"
        throttles.raise_errors(f"Error cancelling partition reassignment{many} for:", errors)
        many = "" if len(moving) == 1 else "s"
        print(f"Successfully cancelled partition reassignment{many} for: {_listed(moving)}")
    else:
        print("None of the specified partition reassignments are active.")
    back = {
        replica: row.current
        for replica, row in replica_dirs(cluster, wanted.dirs).items()
        if row.future is not None and row.current is not None
    }
    if back:
        _move_dirs(cluster, back, given.one("timeout"))
    else:
        # COMPAT: Kafka's tool ends no line here.
        print("None of the specified partition moves are active.", end="")
    if "preserve-throttles" not in given:
        throttles.clear(cluster, partitions)


def _list(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.partitions import list_reassignments

    def listed(nodes: list[int]) -> str:
        return ",".join(map(str, nodes))

    lines = []
    for (topic, number), row in sorted(list_reassignments(cluster).items()):
        adding = f" adding: {listed(row.adding)}." if row.adding else ""
        removing = f" removing: {listed(row.removing)}." if row.removing else ""
        lines.append(f"{topic}-{number}: replicas: {listed(row.replicas)}.{adding}{removing}")
    if lines:
        print("\n".join(["Current partition reassignments:", *lines]))
    else:
        print("No partition reassignments found.")


_WORK = {
    "generate": _generate,
    "execute": _execute,
    "verify": _verify,
    "cancel": _cancel,
    "list": _list,
}
TOOL = Tool("This tool helps to move topic partitions between replicas.", OPTIONS, _run)
