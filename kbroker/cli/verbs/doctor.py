"""``kbroker doctor``: why a client cannot reach the brokers, address by address."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kbroker.cli.arguments import Action, Failed, add_format, printed
from kbroker.cli.connecting import add_connection, connected

if TYPE_CHECKING:
    from kbroker.client.admin.cluster import Probe
    from kbroker.client.connections.cluster import Cluster

_COLUMNS = {"address": "ADDRESS", "from": "FROM", "result": "RESULT", "advice": "ADVICE"}
_EPILOG = """\
A client first connects to one of the bootstrap addresses, which tells it the address of each
broker. Both must be reachable from here, with the same security settings."""
# What the text of an error has -> what to do about it.
_ADVICE = (
    ("resolve", "check the name, or add it to DNS or /etc/hosts"),
    ("refused", "start the broker, or check port and listeners"),
    ("timed out", "a firewall may drop packets: check the network"),
    ("speaks TLS", "set security.protocol to SSL or SASL_SSL"),
    ("not trusted", "set ssl.truststore.location to the authority's certificate"),
    ("TLS handshake", "the listener may not speak TLS: check security.protocol"),
    ("closed by the broker", "check security.protocol: the listener may expect another"),
    ("frame of", "this is no Kafka listener: check the port"),
)
_ADVERTISED = "set advertised.listeners of the broker to an address that can be reached from here"


def _describe(parser: argparse.ArgumentParser) -> None:
    add_format(parser)
    add_connection(parser)


def _doctor(found: argparse.Namespace) -> None:
    with connected(found) as cluster:
        rows = _examine(cluster)
    printed(found.output, _COLUMNS, rows)
    if failed := [str(row["address"]) for row in rows if not row["ok"]]:
        raise Failed(f"cannot reach {', '.join(failed)}")


def _examine(cluster: Cluster) -> list[dict[str, object]]:
    from kbroker.client.admin.cluster import probe, probe_bootstrap, summarize_cluster

    timeout = cluster.request_timeout
    probes = probe_bootstrap(cluster, timeout)
    rows = [_row("bootstrap", each) for each in probes]
    if all(each.error for each in probes):
        return rows
    known = {each.address for each in probes}
    for broker in summarize_cluster(cluster).brokers:
        name = f"broker {broker.node}"
        if f"{broker.host}:{broker.port}" in known:
            continue
        row = _row(name, probe(cluster, broker.host, broker.port, timeout))
        if not row["ok"]:
            row["advice"] = _ADVERTISED
        rows.append(row)
    return rows


def _row(source: str, found: Probe) -> dict[str, object]:
    result = found.error or f"connected in {found.seconds * 1000:.0f} ms"
    advice = next((text for part, text in _ADVICE if found.error and part in found.error), None)
    return {
        "address": found.address,
        "from": source,
        "ok": found.error is None,
        "result": result,
        "advice": advice,
    }


ACTION = Action("find out why brokers cannot be reached", _describe, _doctor, _EPILOG)
