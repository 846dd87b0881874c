"""Whether this broker serves: ``/health`` as JSON, and ``/livez``, ``/readyz`` and ``/healthz``.

Each of the last three makes checks, and answers 200 if none fails, else 503. ``?verbose`` lists
them, as Kubernetes' own do. What is wrong is decided in ``kbroker.health.broker``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from kbroker.exposition.http import HttpError, HttpRequest, http_response
from kbroker.exposition.mbeans import NO_TAGS, Sample, Tags, plain_lines
from kbroker.health.broker import (
    BrokerFacts,
    DirectoryFact,
    checks,
    findings,
    is_serving,
)
from kbroker.health.finding import HEALTHY, LIVE, READY, WRITES, failing
from kbroker.ipc.health_facts import HealthFacts
from kbroker.ipc.process_table import (
    CONNECTIONS,
    PID,
    ProcessKind,
)

VERBOSE, PURPOSE = "verbose", "for"
PROBES = {"/livez": LIVE, "/readyz": READY, "/healthz": HEALTHY}
WRITES_PURPOSE = "writes"
# BOUND: what is further ahead than a year is no forecast.
FORECAST_S_MAX = 365 * 86_400


class Health:
    """zookeeper: whether it is connected, None where there is none. free_slope: by how many bytes a
    second what is free in a log directory changes; None if nobody can say yet.
    """

    def __init__(
        self,
        facts: HealthFacts,
        broker_id: int,
        cluster_id: str,
        zookeeper: Callable[[], bool] | None,
        free_slope: Callable[[str], float | None] = lambda path: None,
    ) -> None:
        self._free_slope = free_slope
        self._facts = facts
        self._processes = facts.processes
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._zookeeper = zookeeper

    def facts(self) -> BrokerFacts:
        """What is so now. Any thread may ask."""
        return self._facts.facts(None if self._zookeeper is None else self._zookeeper())

    def document(self) -> bytes:
        """The response to ``/health``: 200 when this broker is as it should be, 503 otherwise; the
        body says what is wrong.
        """
        document = self.state()
        body = json.dumps(document, indent=1).encode() + b"\n"
        return http_response(200 if document["status"] == "ok" else 503, "application/json", body)

    def state(self) -> dict[str, Any]:
        """The processes, the log directories, and what is wrong. Any thread may ask."""
        facts = self.facts()
        by_name = {one.name: one for one in facts.processes}
        processes = []
        for address in self._processes.addresses:
            if address.kind == ProcessKind.SUPERVISOR:
                continue
            fact = by_name[address.title]
            entry = {
                "name": address.title,
                "pid": self._processes.get(address, PID),
                "state": fact.shown_state,
                "restarts": max(0, self._processes.incarnation(address) - 1),
                "heartbeat_age_ms": fact.silent_ms,
            }
            if address.kind == ProcessKind.NETWORK:
                entry["connections"] = self._processes.get(address, CONNECTIONS)
            processes.append(entry)
        findings_now = findings(facts)
        # Partitions are served without ZooKeeper, so the broker is not unhealthy.
        bad = [
            one for one in failing(findings_now, HEALTHY) if one.kind != "zookeeper-disconnected"
        ]
        document: dict[str, Any] = {
            "status": "degraded" if bad else "ok",
            "broker_id": self._broker_id,
            "cluster_id": self._cluster_id,
            "processes": processes,
            "log_dirs": [
                directory_document(one, self._full_in_s(one)) for one in facts.directories
            ],
            "findings": [one.document for one in findings_now],
        }
        if facts.zookeeper is not None:
            document["zookeeper"] = "connected" if facts.zookeeper else "disconnected"
        return document

    def _full_in_s(self, one: DirectoryFact) -> float | None:
        """None if it does not fill."""
        slope = self._free_slope(one.path)
        if one.free_bytes is None or slope is None or slope >= 0:
            return None
        left_s = one.free_bytes / -slope
        return left_s if left_s < FORECAST_S_MAX else None

    def probe(self, request: HttpRequest) -> bytes | None:
        """The response to a probe; None if the path is none. Raises HttpError."""
        probe = PROBES.get(request.path)
        if probe is None:
            return None
        query = request.query
        if probe == READY and query.get(PURPOSE) == WRITES_PURPOSE:
            probe = WRITES
            query = {name: value for name, value in query.items() if name != PURPOSE}
        if not query.keys() <= {VERBOSE}:
            more = ", and for=writes" if probe == READY else ""
            raise HttpError(400, f"only ?verbose is allowed{more}")
        probes = checks(self.facts(), probe)
        failed = [check for check in probes if check.problem is not None]
        if VERBOSE in query:
            lines = [
                f"[+]{check.name} ok{': ' if check.detail else ''}{check.detail}"
                if check.problem is None
                else f"[-]{check.name} failed: {check.problem}"
                for check in probes
            ]
            lines.append(f"{request.path[1:]} check {'failed' if failed else 'passed'}")
        else:
            lines = [f"failed: {check.name}: {check.problem}" for check in failed] or ["ok"]
        body = "\n".join([*lines, ""]).encode()
        return http_response(503 if failed else 200, "text/plain", body)

    def lines(self) -> Iterator[str]:
        """Prometheus' text: of the processes and the log directories. What cannot be had is
        absent.
        """
        facts = self.facts()
        ups: list[Sample] = [
            (Tags(("process", one.name)), int(is_serving(one)))
            for one in facts.processes
            if one.name != "supervisor"
        ]
        yield from plain_lines("kbroker_process_up", "gauge", "Whether the process serves.", ups)
        is_healthy = not failing(findings(facts), HEALTHY)
        yield from plain_lines(
            "kbroker_healthy",
            "gauge",
            "Whether /healthz answers 200.",
            [(NO_TAGS, int(is_healthy))],
        )
        dirs = [(Tags(("path", one.path)), one) for one in facts.directories]
        yield from plain_lines(
            "kbroker_log_dir_online", "gauge", "Whether the log directory is online.",
            ((tags, int(not one.has_failed)) for tags, one in dirs),
        )  # fmt: skip
        yield from plain_lines(
            "kbroker_log_dir_rejects_writes", "gauge",
            "Whether writes to the log directory are rejected for want of room.",
            ((tags, int(one.rejects_writes)) for tags, one in dirs),
        )  # fmt: skip
        yield from plain_lines(
            "kbroker_log_dir_size_bytes", "gauge", "Size of the file system of a log directory.",
            ((tags, one.total_bytes) for tags, one in dirs if one.total_bytes is not None),
        )  # fmt: skip
        yield from plain_lines(
            "kbroker_log_dir_avail_bytes", "gauge",
            "What is free there for the user of the broker.",
            ((tags, one.free_bytes) for tags, one in dirs if one.free_bytes is not None),
        )  # fmt: skip

    def is_serving(self) -> bool:
        """Whether all processes serve."""
        return all(is_serving(one) for one in self.facts().processes)


def directory_document(one: DirectoryFact, full_in_s: float | None) -> dict[str, Any]:
    """As JSON shows it; what cannot be had is absent. full_in_s: at the rate of the last hour."""
    document: dict[str, Any] = {"path": one.path, "state": one.state}
    if one.free_bytes is not None:
        document |= {"total_bytes": one.total_bytes, "free_bytes": one.free_bytes}
    if full_in_s is not None:
        document["full_in_s"] = round(full_in_s)
    return document
