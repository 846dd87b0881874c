"""``kafka-cluster``: the id of a cluster, and its brokers."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from kbroker.cli.kafka.parsers import INT, ParsedTool, ToolParser
from kbroker.cli.kafka.running import ToolFailed, connected

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster


def _build() -> ToolParser:
    parser = ToolParser(prog="kafka-cluster", description="The id of a cluster, and its brokers.")
    commands = parser.add_subparsers(dest="command", required=True)
    texts = {
        "cluster-id": "print the id of the cluster",
        "unregister": "unregister a broker that is gone for good",
        "list-endpoints": "print the brokers",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text)
        where = command.add_mutually_exclusive_group(required=True)
        where.add_argument("--bootstrap-server", "-b", help="brokers")
        where.add_argument("--bootstrap-controller", "-C", help="refused: brokers take all")
        command.add_argument("--command-config", "-c", help="a file with client settings")
        command.add_argument("--config", help="the same, as before Kafka 4.2")
        if name == "unregister":
            command.add_argument("--id", "-i", type=INT, required=True, help="the broker")
        if name == "list-endpoints":
            command.add_argument(
                "--include-fenced-brokers", action="store_true", help="brokers that do not serve"
            )
    return parser


def _run(given: Namespace) -> None:
    if given.config is not None and given.command_config is not None:
        raise ToolFailed("--config and --command-config cannot be specified together.")
    if given.config is not None:
        print(
            "Option --config has been deprecated and will be removed in a future version. Use "
            "--command-config instead."
        )
    if given.bootstrap_controller is not None:
        raise ToolFailed("there are no controllers to connect to: use --bootstrap-server")
    config = given.command_config or given.config
    with connected(given.bootstrap_server, config) as cluster:
        _COMMANDS[given.command](given, cluster)


def _cluster_id(given: Namespace, cluster: Cluster) -> None:
    from kbroker.client.admin.cluster import summarize_cluster

    cluster_id = summarize_cluster(cluster).cluster_id
    if cluster_id is None:
        print("No cluster ID found. The Kafka version is probably too old.")
    else:
        print(f"Cluster ID: {cluster_id}")


def _unregister(given: Namespace, cluster: Cluster) -> None:
    from kbroker.client.admin.cluster import unregister_broker
    from kbroker.client.errors import UnsupportedByBroker

    try:
        unregister_broker(cluster, given.id)
    except UnsupportedByBroker:
        print("The target cluster does not support the broker unregistration API.")
    else:
        print(f"Broker {given.id} is no longer registered.")


def _list_endpoints(given: Namespace, cluster: Cluster) -> None:
    from kbroker.client.admin.cluster import describe_endpoints

    rows = describe_endpoints(cluster, fenced=given.include_fenced_brokers)
    host = max((len(row.host) for row in rows), default=100)
    rack = max((len(row.rack) for row in rows if row.rack is not None), default=10)
    widths = (10, host, 10, rack, 10, 15)
    lines = [("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE")]
    for row in sorted(rows):
        state = "fenced" if row.fenced else "unfenced"
        lines.append((str(row.node), row.host, str(row.port), row.rack or "null", state, "broker"))
    for line in lines:
        print(" ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)))


_COMMANDS = {
    "cluster-id": _cluster_id,
    "unregister": _unregister,
    "list-endpoints": _list_endpoints,
}
TOOL = ParsedTool(_build, _run)
