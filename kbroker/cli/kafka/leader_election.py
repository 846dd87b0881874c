"""``kafka-leader-election``: give partitions to their preferred replica, or to any live one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.options import Given, valued
from kbroker.cli.kafka.options import flag as flag_option
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed, connected

if TYPE_CHECKING:
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.errors import RejectedError

_TIMEOUT_MS = 30_000
_SCOPES = ("topic", "all-topic-partitions", "path-to-json-file")

OPTIONS = (
    BOOTSTRAP._replace(argument="host:port"),
    valued("admin.config", "config file", "The same as --command-config, as before Kafka 4.2."),
    valued("command-config", "Config file", "A file with settings of a client."),
    valued(
        "path-to-json-file",
        "Path to JSON file",
        'A file with partitions, as\n{"partitions":\n\t[{"topic": "foo", "partition": 1},\n\t '
        '{"topic": "foobar", "partition": 2}]\n}',
    ),
    valued("topic", "topic name", "The topic of --partition."),
    valued("partition", "partition id", "A partition of --topic.", kind=int),
    flag_option("all-topic-partitions", "All partitions."),
    valued(
        "election-type",
        "election type",
        "preferred: the first replica leads again. unclean: where there is no leader, any live "
        "replica leads, and records may be lost. Required.",
    ),
)


def _run(given: Given) -> int:
    _check(given)
    kind = given.one("election-type").lower()
    if kind not in ("preferred", "unclean"):
        raise ToolFailed(
            f"Cannot parse argument '{given.one('election-type')}' of option election-type"
        )
    partitions = _partitions(given)
    if "admin.config" in given:
        print(
            "Option --admin.config has been deprecated and will be removed in a future version. "
            "Use --command-config instead."
        )
    config = given.one("admin.config") or given.one("command-config")
    with connected(given.one("bootstrap-server"), config, deadline_ms=_TIMEOUT_MS) as cluster:
        from kbroker.client.admin.partitions import elect_leaders
        from kbroker.client.errors import RejectedError, Timeout
        from kbroker.errors import ErrorCode

        try:
            results = elect_leaders(cluster, partitions, unclean=kind == "unclean")
        except Timeout as error:
            print("Timeout waiting for election results")
            raise ToolFailed(f"Timeout waiting for election results: {error}") from error
        except RejectedError as error:
            if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            print("Not authorized to perform leader election")
            raise ToolFailed("Not authorized to perform leader election") from error
    _print(kind.upper(), results)
    return 0


def _check(given: Given) -> None:
    """Raises ToolFailed."""
    missing = [name for name in ("bootstrap-server", "election-type") if name not in given]
    if missing:
        raise ToolFailed(f"Missing required option(s): {', '.join(missing)}")
    given.exclude("admin.config", ("command-config",))
    if given.count(_SCOPES) != 1:
        raise ToolFailed(
            f"One and only one of the following options is required: {', '.join(_SCOPES)}"
        )
    if "topic" in given and "partition" not in given:
        raise ToolFailed("Missing required option(s): partition")
    if "partition" in given and "topic" not in given:
        raise ToolFailed("Option partition is only allowed if topic is used")


def _partitions(given: Given) -> list[TopicPartition] | None:
    """None: all. Raises ToolFailed."""
    if "topic" in given:
        return [(given.one("topic"), given.one("partition"))]
    path = given.one("path-to-json-file")
    return None if path is None else read_partitions(path)


def read_partitions(path: str) -> list[TopicPartition]:
    """Those that a file names. Raises ToolFailed."""
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json.load(file)
        if "partitions" not in document:
            raise ToolFailed('Replica election data is missing "partitions" field')
        partitions = [(str(row["topic"]), int(row["partition"])) for row in document["partitions"]]
    except OSError as error:
        raise ToolFailed(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ToolFailed(f"{path}: expected topic and partition of each: {error!r}") from error
    if twice := [key for key in dict.fromkeys(partitions) if partitions.count(key) > 1]:
        listed = ", ".join(f"{topic}-{number}" for topic, number in twice)
        raise ToolFailed(f"Replica election data contains duplicate partitions: [{listed}]")
    return partitions


def _print(kind: str, results: dict[TopicPartition, RejectedError | None]) -> None:
    from kbroker.cli.kafka.java_words import hash_order, java_text, partition_hash
    from kbroker.errors import ErrorCode

    done, needless, failed = [], [], []
    for key, error in results.items():
        if error is None:
            done.append(key)
        elif error.code == ErrorCode.ELECTION_NOT_NEEDED:
            needless.append(key)
        else:
            failed.append(key)

    def listed(keys: list[TopicPartition]) -> str:
        return ", ".join(f"{topic}-{number}" for topic, number in hash_order(keys, partition_hash))

    if done:
        print(f"Successfully completed leader election ({kind}) for partitions {listed(done)}")
    if needless:
        print(f"Valid replica already elected for partitions {listed(needless)}")
    for topic, number in hash_order(failed, partition_hash):
        error = results[topic, number]
        assert error is not None
        print(
            f"Error completing leader election ({kind}) for partition: {topic}-{number}: "
            f"{java_text(error)}"
        )
    if failed:
        raise ToolFailed(f"{len(failed)} replica(s) could not be elected")


TOOL = Tool(
    "This tool attempts to elect a new leader for a set of topic partitions. The type of elections "
    "supported are preferred replicas and unclean replicas.",
    OPTIONS,
    _run,
)
