"""``kafka-preferred-replica-election`` of Kafka until 2.7: preferred replicas lead again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cli.kafka.leader_election import read_partitions
from kbroker.cli.kafka.options import Given, WrongUse, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed
from kbroker.cli.kafka.zookeeper import ZOOKEEPER, connected_either

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.errors import RejectedError

_TIMEOUT_MS = 60_000

OPTIONS = (
    BOOTSTRAP._replace(argument="host:port"),
    ZOOKEEPER,
    valued("admin.config", "config file", "A file with settings of a client."),
    valued("command-config", "config file", "The same, by the name of other tools."),
    valued(
        "path-to-json-file",
        "list of partitions for which preferred replica leader election needs to be triggered",
        'A file with partitions, as\n{"partitions":\n\t[{"topic": "foo", "partition": 1},\n\t '
        '{"topic": "foobar", "partition": 2}]\n}\nwithout it, all partitions.',
    ),
)


def _run(given: Given) -> int:
    print(
        "This tool is deprecated. Please use kafka-leader-election tool. Tracking issue: KAFKA-8405"
    )
    if given.count(("bootstrap-server", "zookeeper")) != 1:
        raise WrongUse("Exactly one of '[bootstrap-server]' or '[zookeeper]' must be provided")
    path = given.one("path-to-json-file")
    partitions = None if path is None else read_partitions(path)
    config = "admin.config" if "admin.config" in given else "command-config"
    with connected_either(given, _TIMEOUT_MS, config) as cluster:
        from kbroker.client.admin.partitions import elect_leaders
        from kbroker.client.admin.topics import list_topics

        if "zookeeper" in given:
            known = {(row.name, part.partition) for row in list_topics(cluster)
                     for part in row.partitions}  # fmt: skip
            wanted = sorted(known if partitions is None else partitions)
            valid = [key for key in wanted if key in known]
            elect_leaders(cluster, valid)
            _print_started(wanted, known)
            return 0
        results = elect_leaders(cluster, partitions)
    return _print_results(results)


def _print_started(wanted: list[TopicPartition], known: set[TopicPartition]) -> None:
    listed = ", ".join(f"{topic}-{number}" for topic, number in wanted if (topic, number) in known)
    print(f"Successfully started preferred replica election for partitions Set({listed})")
    for topic, number in wanted:
        if (topic, number) not in known:
            print(
                f"Skipping preferred replica leader election for partition {topic}-{number} since "
                "it doesn't exist."
            )


def _print_results(results: Mapping[TopicPartition, RejectedError | None]) -> int:
    from kbroker.cli.kafka.java_words import java_text
    from kbroker.errors import ErrorCode

    done, needless, failed = [], [], []
    for (topic, number), error in sorted(results.items(), key=lambda item: item[0]):
        name = f"{topic}-{number}"
        if error is None:
            done.append(name)
        elif error.code == ErrorCode.ELECTION_NOT_NEEDED:
            needless.append(name)
        else:
            failed.append(
                f"Error completing preferred leader election for partition: {name}: "
                f"{java_text(error)}"
            )
    if done:
        listed = ", ".join(done)
        print(f"Successfully completed preferred leader election for partitions {listed}")
    if needless:
        print(f"Preferred replica already elected for partitions {', '.join(needless)}")
    for line in failed:
        print(line)
    if failed:
        raise ToolFailed(f"{len(failed)} preferred replica(s) could not be elected")
    return 0


TOOL = Tool(
    "This tool helps to causes leadership for each partition to be transferred back to the "
    "'preferred replica', it can be used to balance leadership among the servers.",
    OPTIONS,
    _run,
)
