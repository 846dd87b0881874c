"""Whether the broker serves: ``/health`` as JSON, and ``/livez``, ``/readyz`` and ``/healthz``.

Each of the last three makes checks, and answers 200 if none fails, else 503. ``?verbose`` lists
them, as Kubernetes' own do.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kbroker.exposition.http import HttpError, HttpRequest, http_response
from kbroker.ipc.process_table import (
    CONNECTIONS,
    HEARTBEAT_NS,
    PID,
    READY,
    STARTING,
    STATE,
    STOPPING,
    Address,
    ProcessKind,
    ProcessTable,
)

STATE_NAMES = {STARTING: "starting", READY: "ready", STOPPING: "stopping"}
VERBOSE = "verbose"

# What is wrong, or None.
Check = Callable[[], str | None]


class Health:
    """offline_dirs: how many log directories of how many are offline. zookeeper: whether it is
    connected, None where there is none.
    """

    def __init__(
        self,
        processes: ProcessTable,
        parent_pid: int,
        broker_id: int,
        cluster_id: str,
        offline_dirs: Callable[[], tuple[int, int]],
        zookeeper: Callable[[], bool] | None,
    ) -> None:
        self._processes = processes
        self._parent_pid = parent_pid
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._offline_dirs = offline_dirs
        self._zookeeper = zookeeper

    def document(self) -> bytes:
        """The response to ``/health``: 200 when every process is serving, 503 otherwise; the body
        names those that are not.
        """
        document = self.state()
        body = json.dumps(document, indent=1).encode() + b"\n"
        return http_response(200 if document["status"] == "ok" else 503, "application/json", body)

    def state(self) -> dict[str, Any]:
        """The processes and whether they serve. Any thread may ask."""
        now_ns = time.monotonic_ns()
        processes = []
        for address in self._processes.addresses:
            if address.kind == ProcessKind.SUPERVISOR:
                continue
            state = self._processes.get(address, STATE)
            entry = {
                "name": address.title,
                "pid": self._processes.get(address, PID),
                "state": STATE_NAMES.get(state, str(state)),
                "restarts": max(0, self._processes.incarnation(address) - 1),
                "heartbeat_age_ms": (now_ns - self._processes.get(address, HEARTBEAT_NS)) // 10**6,
            }
            if address.kind == ProcessKind.NETWORK:
                entry["connections"] = self._processes.get(address, CONNECTIONS)
            processes.append(entry)
        healthy = all(entry["state"] == "ready" for entry in processes)
        document: dict[str, Any] = {
            "status": "ok" if healthy else "degraded",
            "broker_id": self._broker_id,
            "cluster_id": self._cluster_id,
            "processes": processes,
        }
        if self._zookeeper is not None:
            # Partitions are served without it, so the broker is not unhealthy.
            document["zookeeper"] = "connected" if self._zookeeper() else "disconnected"
        return document

    def probe(self, request: HttpRequest) -> bytes | None:
        """The response to a probe; None if the path is none. Raises HttpError."""
        checks = self._checks_of(request.path)
        if checks is None:
            return None
        if not request.query.keys() <= {VERBOSE}:
            raise HttpError(400, "only ?verbose is allowed")
        found = {name: check() for name, check in checks.items()}
        failed = [name for name, problem in found.items() if problem is not None]
        if VERBOSE in request.query:
            lines = [
                f"[+]{name} ok" if problem is None else f"[-]{name} failed: {problem}"
                for name, problem in found.items()
            ]
            lines.append(f"{request.path[1:]} check {'failed' if failed else 'passed'}")
        else:
            lines = [f"failed: {', '.join(failed)}" if failed else "ok"]
        body = "\n".join([*lines, ""]).encode()
        return http_response(503 if failed else 200, "text/plain", body)

    def _checks_of(self, path: str) -> Mapping[str, Check] | None:
        alive: dict[str, Check] = {"supervisor": self._supervisor}
        # Processes serve once they have the metadata of the cluster.
        serving = alive | {"log-dirs": self._log_dirs}
        for address in self._processes.addresses:
            if address.kind != ProcessKind.SUPERVISOR:
                serving[address.title] = partial(self._process, address)
        everything = dict(serving)
        if self._zookeeper is not None:
            everything["zookeeper"] = self._is_connected
        return {"/livez": alive, "/readyz": serving, "/healthz": everything}.get(path)

    def _process(self, address: Address) -> str | None:
        return None if self._processes.is_ready(address) else "not ready"

    def _supervisor(self) -> str | None:
        return None if os.getppid() == self._parent_pid else "it is gone"

    def _log_dirs(self) -> str | None:
        offline, total = self._offline_dirs()
        return f"all {total} are offline" if offline == total else None

    def _is_connected(self) -> str | None:
        assert self._zookeeper is not None
        return None if self._zookeeper() else "disconnected"
