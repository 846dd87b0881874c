"""The tools by name, and the one entry point of all of them.

A tool is added here, and in docs/kafka-tools.md, where a test asks for it: ``make docs`` writes its
line in ``[project.scripts]`` of pyproject.toml and its link in bin/.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """module: in this package, or with the whole of its name. classes: the names under which
    ``kafka-run-class`` knows it. tool: what it is called in its module.
    """

    module: str
    classes: tuple[str, ...] = ()
    tool: str = "TOOL"

    def load(self) -> Any:
        """The tool, which has ``main``."""
        name = self.module if "." in self.module else f"kbroker.cli.kafka.{self.module}"
        return getattr(importlib.import_module(name), self.tool)


_TOOLS = "org.apache.kafka.tools."
_OF_0_8 = "kbroker.legacy.commands."
TOOLS = {
    "kafka-acls": Entry("acls", (_TOOLS + "AclCommand", "kafka.admin.AclCommand")),
    "kafka-broker-api-versions": Entry(
        "broker_api_versions",
        (_TOOLS + "BrokerApiVersionsCommand", "kafka.admin.BrokerApiVersionsCommand"),
    ),
    "kafka-client-metrics": Entry("client_metrics", (_TOOLS + "ClientMetricsCommand",)),
    "kafka-cluster": Entry("cluster_tool", (_TOOLS + "ClusterTool", "kafka.tools.ClusterTool")),
    "kafka-configs": Entry("configs", ("kafka.admin.ConfigCommand",)),
    "kafka-console-consumer": Entry(
        "console_consumer",
        (_TOOLS + "consumer.ConsoleConsumer", "kafka.tools.ConsoleConsumer"),
    ),
    "kafka-console-producer": Entry(
        "console_producer", (_TOOLS + "ConsoleProducer", "kafka.tools.ConsoleProducer")
    ),
    "kafka-consumer-groups": Entry(
        "consumer_groups",
        (_TOOLS + "consumer.group.ConsumerGroupCommand", "kafka.admin.ConsumerGroupCommand"),
    ),
    "kafka-consumer-offset-checker": Entry(
        _OF_0_8 + "offset_checker", ("kafka.tools.ConsumerOffsetChecker",)
    ),
    "kafka-consumer-perf-test": Entry(
        "consumer_performance",
        (_TOOLS + "ConsumerPerformance", "kafka.tools.ConsumerPerformance"),
    ),
    "kafka-delegation-tokens": Entry(
        "delegation_tokens",
        (_TOOLS + "DelegationTokenCommand", "kafka.admin.DelegationTokenCommand"),
    ),
    "kafka-delete-records": Entry("delete_records", (_TOOLS + "DeleteRecordsCommand",)),
    "kafka-dump-log": Entry(
        "dump_log", (_TOOLS + "DumpLogSegments", "kafka.tools.DumpLogSegments")
    ),
    "kafka-e2e-latency": Entry(
        "end_to_end_latency", (_TOOLS + "EndToEndLatency", "kafka.tools.EndToEndLatency")
    ),
    "kafka-features": Entry("features", (_TOOLS + "FeatureCommand", "kafka.admin.FeatureCommand")),
    "kafka-get-offsets": Entry(
        "get_offsets", (_TOOLS + "GetOffsetShell", "kafka.tools.GetOffsetShell")
    ),
    "kafka-groups": Entry("groups", (_TOOLS + "GroupsCommand",)),
    "kafka-leader-election": Entry("leader_election", (_TOOLS + "LeaderElectionCommand",)),
    "kafka-log-dirs": Entry("log_dirs", (_TOOLS + "LogDirsCommand",)),
    "kafka-mirror-maker": Entry("mirror_maker", ("kafka.tools.MirrorMaker",)),
    "kafka-preferred-replica-election": Entry(
        _OF_0_8 + "preferred_replica_election",
        ("kafka.admin.PreferredReplicaLeaderElectionCommand",),
    ),
    "kafka-producer-perf-test": Entry(
        "producer_performance",
        (_TOOLS + "ProducerPerformance", "kafka.tools.ProducerPerformance"),
    ),
    "kafka-reassign-partitions": Entry(
        "reassign_partitions",
        (_TOOLS + "reassign.ReassignPartitionsCommand", "kafka.admin.ReassignPartitionsCommand"),
    ),
    "kafka-replica-verification": Entry(
        "replica_verification",
        (_TOOLS + "ReplicaVerificationTool", "kafka.tools.ReplicaVerificationTool"),
    ),
    "kafka-replay-log-producer": Entry(
        _OF_0_8 + "replay_log_producer", ("kafka.tools.ReplayLogProducer",)
    ),
    "kafka-run-class": Entry("run_class", (), "SCRIPT"),
    "kafka-server-start": Entry("server_start", ("kafka.Kafka",), "SCRIPT"),
    "kafka-server-stop": Entry("server_stop", (), "SCRIPT"),
    "kafka-simple-consumer-shell": Entry(
        _OF_0_8 + "simple_consumer_shell", ("kafka.tools.SimpleConsumerShell",)
    ),
    "kafka-storage": Entry("storage", ("kafka.tools.StorageTool",)),
    "kafka-streams-application-reset": Entry(
        "streams_reset", (_TOOLS + "StreamsResetter", "kafka.tools.StreamsResetter")
    ),
    "kafka-topics": Entry("topics", (_TOOLS + "TopicCommand", "kafka.admin.TopicCommand")),
    "kafka-transactions": Entry("transactions", (_TOOLS + "TransactionsCommand",)),
    "kafka-verifiable-consumer": Entry("verifiable_consumer", (_TOOLS + "VerifiableConsumer",)),
    "kafka-verifiable-producer": Entry("verifiable_producer", (_TOOLS + "VerifiableProducer",)),
    "zookeeper-server-start": Entry(
        "zookeeper_start",
        (
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            "org.apache.zookeeper.server.ZooKeeperServerMain",
        ),
        "START",
    ),
    "zookeeper-server-stop": Entry("zookeeper_start", (), "STOP"),
    "zookeeper-shell": Entry(
        "zookeeper_shell",
        (
            "org.apache.zookeeper.ZooKeeperMain",
            "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka",
        ),
        "SCRIPT",
    ),
}


def main(arguments: Sequence[str] | None = None, name: str | None = None) -> int:
    """Run the tool by the name that it was called by, without ``.sh``."""
    called = os.path.basename(sys.argv[0]) if name is None else name
    called = called.removesuffix(".sh")
    words = list(sys.argv[1:] if arguments is None else arguments)
    entry = TOOLS.get(called)
    if entry is None:
        print(f"{called}: no such tool; there are {', '.join(TOOLS)}", file=sys.stderr)
        return 1
    code: int = entry.load().main(words)
    return code
