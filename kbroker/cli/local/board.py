"""What the processes of a broker do, and for whom: its processes, topics, clients and requests.

Made from two looks at shared memory: rates are those of the time between them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from kbroker._ext.shared.partition_table import LEADER, ONLINE
from kbroker.cli.local.attached import AttachedBroker
from kbroker.cli.local.broker_facts import broker_facts
from kbroker.cli.local.groups import groups
from kbroker.health.broker import (
    GONE_STATE,
    STUCK_MS,
    SUPERVISOR_NAME,
    ProcessFact,
    findings,
)
from kbroker.ipc.health_facts import STATE_NAMES
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metrics import catalog
from kbroker.protocol.api import ApiKey, title
from kbroker.workers.exporter.processes import ProcessUsage, usage_of

IDLE = {ProcessKind.NETWORK: catalog.NETWORK_IDLE, ProcessKind.IO_WORKER: catalog.IO_IDLE}
ClientKey = tuple[str, str, str]  # client id, software, listener


class TopicTotals(NamedTuple):
    """Totals of the replicas here."""

    partitions: int
    leads: int
    messages_in: int
    bytes_in: int
    bytes_out: int
    size: int


class BoardTotals(NamedTuple):
    """Totals at one time."""

    at_ns: int
    processes: Mapping[Address, Any]  # ``ProcessRow``
    usages: Mapping[Address, ProcessUsage | None]
    idle_ns: Mapping[Address, int]
    requests: list[int]  # by API key
    topics: Mapping[str, TopicTotals]
    clients: Mapping[ClientKey, list[int]]  # connections, requests, bytes in, bytes out


def look(broker: AttachedBroker) -> BoardTotals:
    """What shared memory says now. Raises Failed."""
    processes, counters = broker.processes(), broker.counters()
    requests = counters[:, catalog.REQUESTS.index : catalog.REQUESTS.index + catalog.API_WIDTH]
    usages: dict[Address, ProcessUsage | None] = dict.fromkeys(processes)
    if broker.run.sees_processes:
        usages = {one: usage_of(int(row["pid"])) for one, row in processes.items()}
    return BoardTotals(
        time.monotonic_ns(),
        processes,
        usages,
        {
            one: int(cells[IDLE[one.kind].index])
            for one, cells in zip(broker.addresses, counters, strict=True)
            if one.kind in IDLE
        },
        requests.sum(axis=0).tolist(),
        _topics(broker),
        _clients(broker),
    )


def _topics(broker: AttachedBroker) -> dict[str, TopicTotals]:
    totals: dict[bytes, list[int]] = {}
    for names, slots, is_good, written, reads in broker.replicas():
        incarnation = names["slot_incarnation"]
        data = slots["data"]
        counts = is_good & (data["state"] == ONLINE)
        # A row of another incarnation has the figures of another replica.
        of_writer = written["incarnation"] == incarnation
        bytes_out = np.zeros(len(names), np.int64)
        for read in reads:
            mine = read["incarnation"] == incarnation
            bytes_out += (read["bytes_out"] + read["bytes_to_followers"]) * mine
        columns = (
            np.ones(len(names), np.int64),
            data["role"] == LEADER,
            written["messages_in"] * of_writer,
            written["bytes_in"] * of_writer,
            bytes_out,
            written["sealed_bytes"] * of_writer + data["log_end"]["position"],
        )
        topics, numbers = np.unique(names["topic"], return_inverse=True)
        sums = np.zeros((len(columns), len(topics)), np.int64)
        for column, of_topic in zip(columns, sums, strict=True):
            np.add.at(of_topic, numbers, column * counts)
        for topic, more in zip(topics.tolist(), sums.T.tolist(), strict=True):
            so_far = totals.setdefault(topic, [0] * len(columns))
            totals[topic] = [one + other for one, other in zip(so_far, more, strict=True)]
    return {name.decode("utf-8", "replace"): TopicTotals(*sums) for name, sums in totals.items()}


def _clients(broker: AttachedBroker) -> dict[ClientKey, list[int]]:
    totals: dict[ClientKey, list[int]] = {}
    for row in broker.clients():
        listener = int(row["listener"])
        client_id, name, version = (
            bytes(row[key])[: row[size]].decode("utf-8", "replace")
            for key, size in (
                ("client_id", "client_id_size"),
                ("name", "name_size"),
                ("software_version", "version_size"),
            )
        )
        known = 0 <= listener < len(broker.listeners)
        key = (
            client_id if known else "(others)",
            f"{name} {version}".strip(),
            broker.listeners[listener] if known else "",
        )
        sums = totals.setdefault(key, [0, 0, 0, 0])
        for at, count in enumerate(("connections", "requests", "bytes_in", "bytes_out")):
            sums[at] += int(row[count])
    return totals


def look_again(
    broker: AttachedBroker, before: BoardTotals, seconds: float = 0.0
) -> tuple[BoardTotals, dict[str, Any]]:
    """Another look, not sooner than so long after this call, and the board of what was between.

    Groups are asked for first: an exporter that hangs takes its time, and what is shown must not be
    of before that.
    """
    until = time.monotonic() + seconds
    asked = groups(broker)
    time.sleep(max(0.0, until - time.monotonic()))
    now = look(broker)
    return now, {**board(broker, before, now), "groups": asked}


def board(broker: AttachedBroker, before: BoardTotals, now: BoardTotals) -> dict[str, Any]:
    """The document that ``top`` and ``status`` show; the busiest come first."""
    seconds = max((now.at_ns - before.at_ns) / 1e9, 1e-3)

    def rate(later: float, earlier: float) -> float:
        return round(max(0.0, (later - earlier) / seconds), 1)

    topics: list[dict[str, Any]] = []
    for name, topic in now.topics.items():
        then = before.topics.get(name, topic)
        topics.append(
            {
                "topic": name,
                "partitions": topic.partitions,
                "leads": topic.leads,
                "messages_in_per_s": rate(topic.messages_in, then.messages_in),
                "bytes_in_per_s": rate(topic.bytes_in, then.bytes_in),
                "bytes_out_per_s": rate(topic.bytes_out, then.bytes_out),
                "bytes": topic.size,
            }
        )
    topics.sort(key=lambda row: (-row["bytes_in_per_s"] - row["bytes_out_per_s"], row["topic"]))
    clients: list[dict[str, Any]] = []
    for (client_id, software, listener), counts in now.clients.items():
        earlier = before.clients.get((client_id, software, listener), [0, 0, 0, 0])
        if counts[0] <= 0 and counts[1] == earlier[1]:
            continue
        clients.append(
            {
                "client_id": client_id,
                "software": software,
                "listener": listener,
                "connections": counts[0],
                "requests_per_s": rate(counts[1], earlier[1]),
                "bytes_in_per_s": rate(counts[2], earlier[2]),
                "bytes_out_per_s": rate(counts[3], earlier[3]),
            }
        )
    clients.sort(
        key=lambda row: (
            -row["bytes_in_per_s"] - row["bytes_out_per_s"], -row["requests_per_s"],
            row["client_id"],
        )
    )  # fmt: skip
    requests: list[dict[str, Any]] = [
        {"api": api_title(key), "per_s": rate(count, before.requests[key]), "total": count}
        for key, count in enumerate(now.requests)
        if count
    ]
    requests.sort(key=lambda row: (-row["per_s"], -row["total"]))
    return {
        "broker": {
            "broker_id": broker.status["broker_id"],
            "cluster_id": broker.status["cluster_id"],
            "version": broker.status["version"],
            "pid": broker.pid,
            "user": broker.run.user or None,
            "bootstrap": broker.status["bootstrap"],
            "log_dirs": broker.status["log_dirs"],
            "seconds": round(seconds, 2),
        },
        **_health(broker),
        "processes": [
            _process(broker, address, before, now, seconds)
            for address in broker.addresses
        ],
        "topics": topics,
        "clients": clients,
        "requests": requests,
    }  # fmt: skip


def _health(broker: AttachedBroker) -> dict[str, Any]:
    facts = broker_facts(broker.run)
    return {
        "findings": [finding.document for finding in findings(facts)],
        "log_dirs": [
            {
                "path": one.path,
                "state": one.state,
                "total_bytes": one.total_bytes,
                "free_bytes": one.free_bytes,
                "free_percent": None if one.free_share is None else round(one.free_share * 100, 1),
            }
            for one in facts.directories
        ],
    }


def _process(
    broker: AttachedBroker, address: Address, before: BoardTotals, now: BoardTotals, seconds: float
) -> dict[str, Any]:
    process = now.processes[address]
    is_supervisor = address.kind == ProcessKind.SUPERVISOR
    age_ms = max(0, now.at_ns - int(process["heartbeat_ns"])) // 1_000_000
    name = SUPERVISOR_NAME if is_supervisor else address.title
    state = ProcessFact(name, STATE_NAMES.get(int(process["state"]), "?"), age_ms).shown_state
    usage, earlier = now.usages[address], before.usages[address]
    is_heard = broker.is_running if is_supervisor else age_ms <= STUCK_MS
    # Where its user's processes cannot be seen, it is gone when nothing is heard of it.
    if usage is None and not (is_heard and not broker.run.can_see_all):
        state = GONE_STATE
    row: dict[str, Any] = {
        "process": name,
        "pid": int(process["pid"]),
        "state": state,
        "restarts": max(0, int(process["incarnation"]) - 1),
        "heartbeat_ms": age_ms,
        "cpu_percent": None,
        "idle_percent": None,
        "memory_bytes": None,
        "descriptors": None,
        "connections": (
            int(process["connections"]) if address.kind == ProcessKind.NETWORK else None
        ),
    }
    if usage is not None:
        row["memory_bytes"] = usage.resident
        row["descriptors"] = usage.descriptors if usage.descriptors >= 0 else None
        if earlier is not None:
            row["cpu_percent"] = round(max(0.0, usage.cpu_s - earlier.cpu_s) / seconds * 100, 1)
    if address in now.idle_ns and seconds >= 0.5:
        share = (now.idle_ns[address] - before.idle_ns[address]) / 1e9 / seconds
        row["idle_percent"] = round(min(1.0, max(0.0, share)) * 100, 1)
    return row


def api_title(key: int) -> str:
    """``Produce``; the number of an API that is unknown."""
    try:
        return title(ApiKey(key))
    except ValueError:
        return str(key)
