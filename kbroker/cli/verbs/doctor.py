"""``kbroker doctor``: what is wrong with a cluster, and the command that mends it."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from kbroker.cli.arguments import Action, CommandFailed, add_format, printed_document, seconds_from
from kbroker.cli.cluster_text import since_text
from kbroker.cli.connecting import add_connection, connected
from kbroker.health.cluster import GROUP_WATCH_S
from kbroker.wording import counted, shown

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster
    from kbroker.health.cluster import UnreachableFact
    from kbroker.health.finding import Finding

_EPILOG = """\
It lists nothing that is well. A client first connects to one of the bootstrap addresses, which
tells it the address of each broker: both must be reachable from here, with the same security
settings. Groups that are behind are looked at twice, so that one that reads is not taken for one
that stands still.

exit codes: 0 nothing is wrong, 1 something is, 2 wrong usage"""
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


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watch",
        type=seconds_from(0, 3600),
        default=GROUP_WATCH_S,
        metavar="SECONDS",
        help="time between two looks at groups that are behind (from 0, for none; "
        f"{GROUP_WATCH_S:g})",
    )
    add_format(parser)
    add_connection(parser)


def _doctor(options: argparse.Namespace) -> None:
    with connected(options) as cluster:
        findings, unknown = _examine(cluster, options.watch)
    if options.output == "table":
        print(_text(findings, unknown))
    else:
        rows = [each.document for each in findings]
        printed_document(options.output, {"findings": rows, "unknown": unknown})
    if findings:
        raise CommandFailed(f"{counted(len(findings), 'finding')}")


def _examine(cluster: Cluster, watch_s: float) -> tuple[list[Finding], list[str]]:
    from kbroker.client.admin.cluster import probe_bootstrap
    from kbroker.diagnosis.examination import examine
    from kbroker.diagnosis.group_progress import watched_groups
    from kbroker.health.cluster import ClusterFacts, UnreachableFact, findings
    from kbroker.health.finding import by_severity

    probes = probe_bootstrap(cluster, cluster.request_timeout)
    away = [
        UnreachableFact("bootstrap", each.address, each.error, _advice(each.error))
        for each in probes
        if each.error is not None
    ]
    if len(away) == len(probes):
        # The controller may well be there.
        return findings(ClusterFacts(0, cluster.bootstrap, [], 0, unreachable=away)), []
    groups = partial(watched_groups, cluster, watch_s) if watch_s > 0 else None
    examination = examine(cluster, groups=groups)
    known = {fact.address for fact in examination.facts.unreachable}
    facts = examination.facts._replace(
        unreachable=[
            *(_with_cause(fact) for fact in examination.facts.unreachable),
            *(fact for fact in away if fact.address not in known),
        ]
    )
    return by_severity(findings(facts)), list(facts.unknown)


def _with_cause(fact: UnreachableFact) -> UnreachableFact:
    return fact if fact.advice else fact._replace(advice=_advice(fact.why))


def _advice(error: str | None) -> str | None:
    return next((text for part, text in _ADVICE if error and part in error), None)


def _text(findings: list[Finding], unknown: list[str]) -> str:
    lines = []
    for each in findings:
        lines += [
            f"{each.severity.upper()}  {shown(each.subject)}: "
            f"{shown(each.what, 1000)}{since_text(each.since_ms)}",
            f"    {shown(each.cost, 1000)}",
        ]
        if each.command is not None:
            lines.append(f"    $ {shown(each.command, 1000)}")
    if not findings:
        lines.append("nothing is wrong" + (" as far as could be seen" if unknown else ""))
    lines += [f"not known: {shown(text, 1000)}" for text in unknown]
    return "\n".join(lines)


ACTION = Action("find out what is wrong with a cluster", _describe, _doctor, _EPILOG)
