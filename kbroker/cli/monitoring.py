"""What is shipped for Prometheus and Grafana: a scrape configuration, alert rules, dashboards.

All of it is made from tables here; a test asks a broker for every series that they name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

DATASOURCE = "${DS_PROMETHEUS}"
WIDTH, HEIGHT = 12, 8
JOB = "kafka"
_ANY_JOB = f'job="{JOB}"'
_SELECTOR = re.compile(r"\b(?P<name>(?:kafka|kbroker)_[a-z_]+|up\b)(?:\{(?P<matchers>[^}]*)\})?")


class AlertRule(NamedTuple):
    """An alert. text: what is the matter, and what to do about it."""

    alert: str
    expr: str
    wait: str
    severity: str
    text: str


RULES = (
    AlertRule(
        "KafkaBrokerDown",
        'up{job="kafka"} == 0',
        "1m",
        "critical",
        "{{ $labels.instance }} cannot be scraped. Look at the broker's log and at kbroker status; "
        "other brokers lead its partitions if these have replicas.",
    ),
    AlertRule(
        "KafkaProcessDown",
        "kbroker_process_up == 0",
        "10s",
        "warning",
        "{{ $labels.process }} of {{ $labels.instance }} does not serve. The supervisor restarts "
        "it; the log says why it ended.",
    ),
    AlertRule(
        "KafkaOfflinePartitions",
        "sum(kafka_controller_kafkacontroller_offlinepartitionscount) > 0",
        "10s",
        "critical",
        "{{ $value }} partitions have no leader and cannot be read or written. Start the brokers "
        "that have their replicas; kbroker health names the partitions.",
    ),
    AlertRule(
        "KafkaActiveControllers",
        "sum(kafka_controller_kafkacontroller_activecontrollercount) != 1",
        "1m",
        "critical",
        "{{ $value }} brokers are the active controller instead of one. Check that all brokers "
        "reach ZooKeeper (kafka_server_sessionexpirelistener_zookeeperexpires_total).",
    ),
    AlertRule(
        "KafkaUnderMinIsr",
        "kafka_server_replicamanager_underminisrpartitioncount > 0",
        "1m",
        "critical",
        "{{ $value }} partitions led by {{ $labels.instance }} reject writes with acks=all, as too "
        "few replicas are in sync. Start the other brokers, or look for slow disks there.",
    ),
    AlertRule(
        "KafkaUnderReplicated",
        "kafka_server_replicamanager_underreplicatedpartitions > 0",
        "5m",
        "warning",
        "{{ $value }} partitions led by {{ $labels.instance }} have replicas that are not in sync. "
        "Look for a broker that is down, or that cannot keep up.",
    ),
    AlertRule(
        "KafkaUncleanElection",
        "increase(kafka_controller_controllerstats_uncleanleaderelections_total[10m]) > 0",
        "0m",
        "critical",
        "A replica that was not in sync has become leader, so records may be lost. "
        "unclean.leader.election.enable allows that; compare what producers have sent.",
    ),
    AlertRule(
        "KafkaLogDirOffline",
        "kafka_log_logmanager_offlinelogdirectorycount > 0",
        "10s",
        "critical",
        "{{ $value }} log directories of {{ $labels.instance }} are offline, after a write or a "
        "sync has failed. Check the disk, then restart the broker.",
    ),
    AlertRule(
        "KafkaWritesRejected",
        "kbroker_log_dir_rejects_writes > 0",
        "0m",
        "critical",
        "{{ $labels.path }} of {{ $labels.instance }} is full: writes are rejected until there is "
        "room. Lower retention.ms or retention.bytes of large topics, or enlarge the disk.",
    ),
    AlertRule(
        "KafkaDiskAlmostFull",
        "kbroker_log_dir_avail_bytes / kbroker_log_dir_size_bytes < 0.05",
        "1m",
        "critical",
        "{{ $labels.path }} of {{ $labels.instance }} has {{ $value | humanizePercentage }} free. "
        "Writes are rejected when it is full: lower retention, or enlarge the disk.",
    ),
    AlertRule(
        "KafkaDiskLow",
        "kbroker_log_dir_avail_bytes / kbroker_log_dir_size_bytes < 0.15",
        "5m",
        "warning",
        "{{ $labels.path }} of {{ $labels.instance }} has {{ $value | humanizePercentage }} free. "
        "Lower retention.ms or retention.bytes of large topics, or enlarge the disk.",
    ),
    AlertRule(
        "KafkaBrokerMissing",
        "kbroker_brokers_missing > 0",
        "10s",
        "critical",
        "{{ $value }} brokers that have replicas are not registered. kbroker doctor names them, "
        "and what their absence costs.",
    ),
    AlertRule(
        "KafkaNotHealthy",
        "kbroker_healthy == 0",
        "10s",
        "critical",
        "/healthz of {{ $labels.instance }} is 503; /healthz?verbose and kbroker health say why.",
    ),
    AlertRule(
        "KafkaTopicsUnknown",
        "kbroker_topics_known == 0",
        "1m",
        "warning",
        "The metrics of {{ $labels.instance }} lack its topics and groups, and rules about them "
        "say nothing: its controller process does not respond. Its log says more.",
    ),
    AlertRule(
        "KafkaDamagedSegments",
        "kbroker_log_segments_damaged > 0",
        "0m",
        "critical",
        "{{ $value }} segments of {{ $labels.instance }} are damaged; the log names them. Another "
        "replica may have them whole: delete this one's, and it is copied.",
    ),
    AlertRule(
        "KafkaBusyNetwork",
        "kafka_network_socketserver_networkprocessoravgidle_percent < 0.2",
        "10m",
        "warning",
        "The network processes of {{ $labels.instance }} are busy for more than 80 % of their "
        "time. Raise num.network.threads, or spread partitions over more brokers.",
    ),
    AlertRule(
        "KafkaBusyIo",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent < 0.2",
        "10m",
        "warning",
        "The io workers of {{ $labels.instance }} are busy for more than 80 % of their time. Raise "
        "num.io.threads, or spread partitions over more brokers.",
    ),
    AlertRule(
        "KafkaProduceSlow",
        'kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.99"} > 1000',
        "5m",
        "warning",
        "One in a hundred produce requests to {{ $labels.instance }} takes {{ $value }} ms. The "
        "stages (requestqueuetimems, localtimems, remotetimems) say whether it waits for io "
        "workers, the disk or replicas.",
    ),
    AlertRule(
        "KafkaGroupLag",
        "sum by (consumergroup, topic) (kafka_consumergroup_lag_sum) > 1000 and "
        "sum by (consumergroup, topic) (delta(kafka_consumergroup_lag_sum[10m])) > 0",
        "10m",
        "warning",
        "Group {{ $labels.consumergroup }} is {{ $value }} records behind in "
        "{{ $labels.topic }}, and more and more. Start more consumers, up to one a partition, or "
        "find out why they are slow.",
    ),
    AlertRule(
        "KafkaHangingTransactions",
        "kbroker_transactions_hanging > 0",
        "5m",
        "warning",
        "{{ $value }} transactions of {{ $labels.instance }} will not end by themselves: readers "
        "of committed records wait. kafka-transactions.sh finds and aborts them.",
    ),
)


class Panel(NamedTuple):
    """series: (expression, legend)."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]


def _rate(name: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({name}{{{where}}}[$__rate_interval]))"


_TOPICS = "kafka_server_brokertopicmetrics_{}_total"
_TIMES = "kafka_network_requestmetrics_{}"
_STAGES = (
    "requestqueuetimems",
    "localtimems",
    "remotetimems",
    "throttletimems",
    "responsequeuetimems",
    "responsesendtimems",
)

DASHBOARDS: dict[str, tuple[Panel, ...]] = {
    "broker": (
        Panel("Records in", "wps", ((_rate(_TOPICS.format("messagesin"), "instance", 'topic=""'),
                                     "{{instance}}"),)),
        Panel("Bytes in and out", "Bps", (
            (_rate(_TOPICS.format("bytesin"), "instance", 'topic=""'), "in {{instance}}"),
            (_rate(_TOPICS.format("bytesout"), "instance", 'topic=""'), "out {{instance}}"),
        )),
        Panel("Requests", "reqps", ((_rate(_TIMES.format("requests_total"), "request"),
                                     "{{request}}"),)),
        Panel("Errors", "reqps", ((_rate(_TIMES.format("errors_total"), "request,error",
                                         'error!="NONE"'), "{{request}} {{error}}"),)),
        Panel("Total time, 99 %", "ms", ((
            'max by (request) (' + _TIMES.format("totaltimems") + '{quantile="0.99"})',
            "{{request}}"),)),
        Panel("Stages of Produce, 99 %", "ms", tuple(
            (f'max({_TIMES.format(stage)}{{request="Produce",quantile="0.99"}})', stage)
            for stage in _STAGES)),
        Panel("Idle", "percentunit", (
            ("kafka_network_socketserver_networkprocessoravgidle_percent",
             "network {{instance}}"),
            ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
             "io {{instance}}"),
        )),
        Panel("Connections", "none", ((
            "sum by (instance, listener) (kafka_server_socket_server_metrics_connection_count)",
            "{{listener}} {{instance}}"),)),
        Panel("Waiting requests", "none", ((
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "{{delayedOperation}} {{instance}}"),)),
    ),
    "topics": (
        Panel("Records in", "wps", ((_rate(_TOPICS.format("messagesin"), "topic", 'topic!=""'),
                                     "{{topic}}"),)),
        Panel("Bytes in", "Bps", ((_rate(_TOPICS.format("bytesin"), "topic", 'topic!=""'),
                                   "{{topic}}"),)),
        Panel("Bytes out", "Bps", ((_rate(_TOPICS.format("bytesout"), "topic", 'topic!=""'),
                                    "{{topic}}"),)),
        Panel("Failed requests", "reqps", (
            (_rate(_TOPICS.format("failedproducerequests"), "topic", 'topic!=""'),
             "produce {{topic}}"),
            (_rate(_TOPICS.format("failedfetchrequests"), "topic", 'topic!=""'),
             "fetch {{topic}}"),
        )),
        Panel("Size on disk", "bytes", (("sum by (topic) (kafka_log_log_size)", "{{topic}}"),)),
        Panel("Segments", "none", (("sum by (topic) (kafka_log_log_numlogsegments)",
                                    "{{topic}}"),)),
    ),
    "groups": (
        Panel("Lag in records", "none", ((
            "sum by (consumergroup, topic) (kafka_consumergroup_lag_sum)",
            "{{consumergroup}} {{topic}}"),)),
        Panel("Lag in seconds", "s", ((
            "max by (consumergroup, topic) (kbroker_consumergroup_lag_seconds)",
            "{{consumergroup}} {{topic}}"),)),
        Panel("Committed records", "wps", ((
            "sum by (consumergroup, topic) "
            "(rate(kafka_consumergroup_current_offset_sum[$__rate_interval]))",
            "{{consumergroup}} {{topic}}"),)),
        Panel("Members", "none", (("sum by (consumergroup) (kafka_consumergroup_members)",
                                   "{{consumergroup}}"),)),
        Panel("Rebalances", "none", (
            (_rate("kbroker_classic_group_rebalances_total", "instance"), "classic {{instance}}"),
            (_rate("kbroker_consumer_group_rebalances_total", "instance"),
             "consumer {{instance}}"),
        )),
        Panel("States", "none", (("sum by (kind, state) (kbroker_group_state)",
                                  "{{kind}} {{state}}"),)),
    ),
    "processes": (
        Panel("CPU", "none", ((_rate("kbroker_process_cpu_seconds_total", "instance,process"),
                               "{{process}} {{instance}}"),)),
        Panel("Resident memory", "bytes", (("kbroker_process_resident_memory_bytes",
                                            "{{process}} {{instance}}"),)),
        Panel("File descriptors", "none", (("kbroker_process_open_fds",
                                            "{{process}} {{instance}}"),)),
        Panel("Free on disk", "percentunit", ((
            "kbroker_log_dir_avail_bytes / kbroker_log_dir_size_bytes",
            "{{path}} {{instance}}"),)),
        Panel("Disk", "Bps", (
            ("irate(kafka_server_kafkaserver_linux_disk_read_bytes[$__rate_interval])",
             "read {{instance}}"),
            ("irate(kafka_server_kafkaserver_linux_disk_write_bytes[$__rate_interval])",
             "written {{instance}}"),
        )),
        Panel("Restarts", "none", ((
            "sum by (instance) (increase(kbroker_process_restarts_total[$__rate_interval]))",
            "{{instance}}"),)),
        Panel("Request arena", "bytes", (("kbroker_request_arena_used_bytes",
                                          "{{process}} {{instance}}"),)),
    ),
    "cluster": (
        Panel("Brokers", "none", (("max(kafka_brokers)", "brokers"),)),
        Panel("Active controllers", "none", ((
            "sum(kafka_controller_kafkacontroller_activecontrollercount)", "controllers"),)),
        Panel("Partitions in trouble", "none", (
            ("sum(kafka_controller_kafkacontroller_offlinepartitionscount)", "offline"),
            ("sum(kafka_server_replicamanager_underminisrpartitioncount)", "under min ISR"),
            ("sum(kafka_server_replicamanager_underreplicatedpartitions)", "under-replicated"),
        )),
        Panel("Leaders", "none", (("kafka_server_replicamanager_leadercount", "{{instance}}"),)),
        Panel("Changes of ISRs", "none", (
            (_rate("kafka_server_replicamanager_isrshrinks_total", "instance"),
             "shrinks {{instance}}"),
            (_rate("kafka_server_replicamanager_isrexpands_total", "instance"),
             "expands {{instance}}"),
        )),
        Panel("Largest lag of followers", "none", ((
            "kafka_server_replicafetchermanager_maxlag", "{{instance}}"),)),
        Panel("Replication", "Bps", (
            (_rate("kafka_server_brokertopicmetrics_replicationbytesin_total", "instance"),
             "in {{instance}}"),
            (_rate("kafka_server_brokertopicmetrics_replicationbytesout_total", "instance",
                   'topic=""'), "out {{instance}}"),
        )),
        Panel("Elections", "none", (
            (_rate("kafka_controller_controllerstats_leaderelections_total", "instance"),
             "{{instance}}"),
            (_rate("kafka_controller_controllerstats_uncleanleaderelections_total", "instance"),
             "unclean {{instance}}"),
        )),
    ),
}  # fmt: skip


def expressions() -> list[str]:
    """Every expression of the rules and dashboards."""
    panels = [panel for some in DASHBOARDS.values() for panel in some]
    return [rule.expr for rule in RULES] + [expr for panel in panels for expr, _ in panel.series]


def of_job(expr: str, job: str) -> str:
    """The expression, of the series of this job alone."""

    def restricted(match: re.Match[str]) -> str:
        matchers = [f"job={json.dumps(job)}"]
        matchers += [text for text in (match["matchers"] or "").split(",") if text]
        return match["name"] + "{" + ",".join(each for each in matchers if each != _ANY_JOB) + "}"

    return _SELECTOR.sub(restricted, expr)


def prometheus_config(targets: Sequence[str], job: str = JOB) -> str:
    """A configuration with one job, which the alert rules of the same job know."""
    return (
        "global:\n"
        "  scrape_interval: 15s\n"
        "rule_files:\n"
        "  - kbroker-rules.yml  # kbroker generate alert-rules\n"
        "scrape_configs:\n"
        f"  - job_name: {json.dumps(job)}\n"
        "    static_configs:\n"
        f"      - targets: {json.dumps(list(targets))}\n"
    )


def alert_rules(job: str | None = None) -> str:
    """The rules as YAML, of which JSON strings are a part. job: of the series that they are about;
    None: any series with Kafka's names, and the job ``kafka`` where it takes one.
    """
    lines = ["groups:", "  - name: kbroker", "    rules:"]
    for rule in RULES:
        lines += [
            f"      - alert: {rule.alert}",
            f"        expr: {json.dumps(rule.expr if job is None else of_job(rule.expr, job))}",
            f"        for: {rule.wait}",
            f"        labels: {{severity: {rule.severity}}}",
            f"        annotations: {{description: {json.dumps(rule.text)}}}",
        ]
    return "\n".join([*lines, ""])


def dashboard(name: str, job: str | None = None) -> dict[str, Any]:
    """A dashboard to import; Grafana asks for the data source. job: of the series that it shows;
    None: of any job.
    """
    return {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
            }
        ],
        "uid": f"kbroker-{name}",
        "title": f"Kafka: {name}",
        "tags": ["kafka", "kbroker"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": [
            _panel(number, panel, job) for number, panel in enumerate(DASHBOARDS[name])
        ],
    }  # fmt: skip


def _panel(number: int, panel: Panel, job: str | None) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": DATASOURCE}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {
            "x": number % 2 * WIDTH,
            "y": number // 2 * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": source,
                "expr": expr if job is None else of_job(expr, job),
                "legendFormat": text,
            }
            for at, (expr, text) in enumerate(panel.series)
        ],
    }
