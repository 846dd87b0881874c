"""What other people's dashboards and alert rules ask for, and a reader of Prometheus' text.

The names and labels are those of the expressions in these files; of each expression, what it needs
to have an answer. Labels that come from a scrape's relabelling (``namespace``,
``strimzi_io_cluster``, ``kubernetes_pod_name``) are left out, as are figures of other programs
(containers, kubelet) and of the JVM.
"""

from __future__ import annotations

import re
from typing import NamedTuple

STRIMZI = "strimzi/strimzi-kafka-operator examples/metrics/"
STRIMZI_KAFKA = STRIMZI + "grafana-dashboards/strimzi-kafka.json (036c8557)"
STRIMZI_EXPORTER = STRIMZI + "grafana-dashboards/strimzi-kafka-exporter.json (5aa6bf01)"
STRIMZI_RULES = STRIMZI + "prometheus-install/prometheus-rules/prometheus-kafka-rules.yaml"
EXPORTER_OVERVIEW = "danielqsj/kafka_exporter kafka_exporter_overview.json (0f5fc55c)"

TOPIC = ("topic",)
PARTITION = ("topic", "partition")
GROUP = ("consumergroup", "topic", "partition")


class Needed(NamedTuple):
    """A series, the labels that an expression selects or groups by, and where it is."""

    name: str
    labels: tuple[str, ...]
    source: str


NEEDED = [
    *(
        Needed(f"kafka_server_brokertopicmetrics_{name}_total", TOPIC, STRIMZI_KAFKA)
        for name in (
            "bytesin",
            "bytesout",
            "messagesin",
            "totalproducerequests",
            "failedproducerequests",
            "totalfetchrequests",
            "failedfetchrequests",
        )
    ),
    *(
        Needed(name, (), STRIMZI_KAFKA)
        for name in (
            "kafka_controller_kafkacontroller_activecontrollercount",
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "kafka_server_replicamanager_leadercount",
            "kafka_server_replicamanager_partitioncount",
            "kafka_server_replicamanager_underreplicatedpartitions",
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "kafka_network_socketserver_networkprocessoravgidle_percent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
            "kafka_server_kafkaserver_linux_disk_write_bytes",
            "kafka_server_kafkaserver_linux_disk_read_bytes",
            "process_open_fds",
        )
    ),
    Needed("kafka_cluster_partition_atminisr", (), STRIMZI_KAFKA),
    Needed("kafka_cluster_partition_underminisr", (), STRIMZI_KAFKA),
    Needed("kafka_cluster_partition_replicascount", TOPIC, STRIMZI_KAFKA),
    Needed("kafka_server_socket_server_metrics_connection_count", ("listener",), STRIMZI_KAFKA),
    Needed("kafka_log_log_size", PARTITION, STRIMZI_KAFKA),
    Needed("kafka_exporter_build_info", (), STRIMZI_EXPORTER),
    Needed("kafka_cluster_partition_atminisr", TOPIC, STRIMZI_EXPORTER),
    Needed("kafka_cluster_partition_underminisr", TOPIC, STRIMZI_EXPORTER),
    Needed("kafka_topic_partitions", TOPIC, STRIMZI_EXPORTER),
    Needed("kafka_topic_partition_replicas", TOPIC, STRIMZI_EXPORTER),
    Needed("kafka_topic_partition_in_sync_replica", TOPIC, STRIMZI_EXPORTER),
    Needed("kafka_topic_partition_under_replicated_partition", TOPIC, STRIMZI_EXPORTER),
    Needed("kafka_topic_partition_leader_is_preferred", TOPIC, STRIMZI_EXPORTER),
    Needed("kafka_topic_partition_current_offset", PARTITION, STRIMZI_EXPORTER),
    Needed("kafka_topic_partition_oldest_offset", PARTITION, STRIMZI_EXPORTER),
    Needed("kafka_consumergroup_current_offset", GROUP, STRIMZI_EXPORTER),
    Needed("kafka_consumergroup_lag", GROUP, STRIMZI_EXPORTER),
    *(
        Needed(name, (), STRIMZI_RULES)
        for name in (
            "kafka_server_replicamanager_underreplicatedpartitions",
            "kafka_controller_kafkacontroller_activecontrollercount",
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "kafka_server_replicamanager_underminisrpartitioncount",
            "kafka_log_logmanager_offlinelogdirectorycount",
        )
    ),
    Needed("kafka_topic_partition_current_offset", TOPIC, EXPORTER_OVERVIEW),
    Needed("kafka_consumergroup_lag", ("consumergroup", "topic"), EXPORTER_OVERVIEW),
    Needed("kafka_topic_partitions", TOPIC, EXPORTER_OVERVIEW),
]

Labels = tuple[tuple[str, str], ...]
_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Scrape:
    """A text of ``/metrics``, checked while it is read: each metric once, each series once."""

    def __init__(self, text: str) -> None:
        self.values: dict[str, dict[Labels, float]] = {}
        self.typed = typed = set[str]()
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                name = line.split()[2]
                assert name not in typed, f"{name} twice"
                typed.add(name)
            elif not line.startswith("#"):
                found = _LINE.match(line)
                assert found, line
                name, labels, value = found.groups()
                series = self.values.setdefault(name, {})
                key = tuple(_LABEL.findall(labels or ""))
                assert key not in series, line
                series[key] = float(value)

    def get(self, name: str, **labels: str) -> float:
        """The value of the one series with exactly these labels."""
        wanted = sorted(labels.items())
        [value] = [v for key, v in self.values[name].items() if sorted(key) == wanted]
        return value

    def has(self, needed: Needed) -> bool:
        """Whether an expression that needs it has an answer."""
        return any(
            {label for label, _ in key} >= set(needed.labels)
            for key in self.values.get(needed.name, {})
        )
