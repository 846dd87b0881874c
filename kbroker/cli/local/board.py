"""What the processes of a broker do, and for whom: its processes, topics, clients and requests.

Made from two looks at shared memory: rates are those of the time between them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker._ext.shared.client_figures import read_clients
from kbroker._ext.shared.log_figures import LogFigures
from kbroker._ext.shared.partition_table import LEADER, ONLINE, PartitionTable
from kbroker.cli.local.attached import AttachedBroker
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
)
from kbroker.metrics import catalog
from kbroker.protocol.api import ApiKey, title
from kbroker.workers.exporter.processes import Usage, usage_of

STATES = {STARTING: "starting", READY: "ready", STOPPING: "stopping"}
# A process writes a heartbeat four times a second.
STUCK_MS = 5_000
IDLE = {ProcessKind.NETWORK: catalog.NETWORK_IDLE, ProcessKind.IO_WORKER: catalog.IO_IDLE}
# In the rows of ``LogFigures``.
MESSAGES_IN, BYTES_IN, SEALED_BYTES, BYTES_OUT, FOLLOWER_BYTES = 0, 1, 6, 7, 8

ClientKey = tuple[str, str, str]  # client id, software, listener


class Topic(NamedTuple):
    """Totals of the replicas here."""

    partitions: int
    leads: int
    messages_in: int
    bytes_in: int
    bytes_out: int
    size: int


class Look(NamedTuple):
    """Totals at one time."""

    at_ns: int
    usages: Mapping[Address, Usage | None]
    idle_ns: Mapping[Address, int]
    requests: list[int]  # by API key
    topics: Mapping[str, Topic]
    clients: Mapping[ClientKey, list[int]]  # connections, requests, bytes in, bytes out


def look(broker: AttachedBroker) -> Look:
    """What shared memory says now."""
    processes = broker.processes
    requests = [
        sum(counters.get(catalog.REQUESTS, key) for counters in broker.counters.values())
        for key in range(catalog.API_WIDTH)
    ]
    return Look(
        time.monotonic_ns(),
        {one: usage_of(processes.get(one, PID)) for one in processes.addresses},
        {one: c.get(IDLE[one.kind]) for one, c in broker.counters.items() if one.kind in IDLE},
        requests,
        _topics(broker),
        _clients(broker),
    )


def _topics(broker: AttachedBroker) -> dict[str, Topic]:
    capacity = broker.status["slots"]
    networks = len(broker.processes.of_kind(ProcessKind.NETWORK))
    table = PartitionTable(broker.region("partitions"), capacity)
    figures = LogFigures(broker.region("log-figures"), capacity, networks)
    found = {}
    for name, slots in broker.slots().items():
        count = leads = messages = bytes_in = bytes_out = size = 0
        for number, incarnation in slots.values():
            slot = table.read(number)
            if slot is None or slot["state"] != ONLINE or slot["slot_incarnation"] != incarnation:
                continue
            row = figures.get(number, incarnation)
            count += 1
            leads += slot["role"] == LEADER
            messages += row[MESSAGES_IN]
            bytes_in += row[BYTES_IN]
            bytes_out += row[BYTES_OUT] + row[FOLLOWER_BYTES]
            size += row[SEALED_BYTES] + slot["log_end"][2]
        found[name] = Topic(count, leads, messages, bytes_in, bytes_out, size)
    return found


def _clients(broker: AttachedBroker) -> dict[ClientKey, list[int]]:
    networks = len(broker.processes.of_kind(ProcessKind.NETWORK))
    found: dict[ClientKey, list[int]] = {}
    for _, listener, client_id, name, version, *counts in read_clients(
        broker.region("clients"), networks
    ):
        texts = [text.decode("utf-8", "replace") for text in (client_id, name, version)]
        known = 0 <= listener < len(broker.listeners)
        key = (
            texts[0] if known else "(others)",
            " ".join(texts[1:]).strip(),
            broker.listeners[listener] if known else "",
        )
        sums = found.setdefault(key, [0, 0, 0, 0])
        for at, count in enumerate(counts):
            sums[at] += count
    return found


def board(broker: AttachedBroker, before: Look, now: Look) -> dict[str, Any]:
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
            "bootstrap": broker.status["bootstrap"],
            "log_dirs": broker.status["log_dirs"],
            "seconds": round(seconds, 2),
        },
        "processes": [
            _process(broker, address, before, now, seconds)
            for address in broker.processes.addresses
        ],
        "topics": topics,
        "clients": clients,
        "requests": requests,
    }  # fmt: skip


def _process(
    broker: AttachedBroker, address: Address, before: Look, now: Look, seconds: float
) -> dict[str, Any]:
    table = broker.processes
    is_supervisor = address.kind == ProcessKind.SUPERVISOR
    age_ms = (now.at_ns - table.get(address, HEARTBEAT_NS)) // 1_000_000
    state = STATES.get(table.get(address, STATE), "?")
    usage, earlier = now.usages[address], before.usages[address]
    if usage is None:
        state = "gone"
    elif not is_supervisor and state == "ready" and age_ms > STUCK_MS:
        state = "stuck"
    row: dict[str, Any] = {
        "process": "supervisor" if is_supervisor else address.title,
        "pid": table.get(address, PID),
        "state": state,
        "restarts": max(0, table.incarnation(address) - 1),
        "heartbeat_ms": None if is_supervisor else age_ms,
        "cpu_percent": None,
        "idle_percent": None,
        "memory_bytes": None,
        "descriptors": None,
        "connections": (
            table.get(address, CONNECTIONS) if address.kind == ProcessKind.NETWORK else None
        ),
    }
    if usage is not None:
        row["memory_bytes"], row["descriptors"] = usage.resident, usage.descriptors
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
