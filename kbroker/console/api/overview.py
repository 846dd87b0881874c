"""The broker and its cluster at a glance, and what a client needs to reach them."""

from __future__ import annotations

from typing import cast

from kbroker.client.admin.cluster import summarize_cluster
from kbroker.console.answers import (
    BrokerHealth,
    CountedPartitions,
    Overview,
    TopicPartitionName,
)
from kbroker.console.operation import CheckedRequest, Operation
from kbroker.diagnosis.examination import missing_facts
from kbroker.health.cluster import missing_cost, missing_text

# BOUND: partitions in trouble that are listed; all are counted.
LISTED_MAX = 100


def _overview(asked: CheckedRequest) -> Overview:
    state = summarize_cluster(asked.cluster)
    return {
        "version": asked.broker.version,
        "broker": asked.broker.broker_id,
        "cluster": state.cluster_id,
        "controller": state.controller,
        "brokers": [
            {
                "node": row.node,
                "host": row.host,
                "port": row.port,
                "rack": row.rack,
                "leads": row.leads,
                "replicas": row.replicas,
            }
            for row in state.brokers
        ],
        "listeners": [
            {"name": name, "protocol": protocol, "address": address}
            for name, protocol, address in asked.broker.listeners
        ],
        "topics": state.topics - state.internal_topics,
        "internal_topics": state.internal_topics,
        "partitions": state.partitions,
        "offline": _listed(state.offline),
        "under_replicated": _listed(state.under_replicated),
        "missing": [
            {
                "node": one.node,
                "address": one.address,
                "since_ms": one.since_ms,
                "text": f"{missing_text(one)} is missing",
                "cost": missing_cost(one),
            }
            for one in missing_facts(state)
        ],
        "health": cast(BrokerHealth, asked.broker.processes()),
    }


def _listed(keys: list[tuple[str, int]]) -> CountedPartitions:
    rows: list[TopicPartitionName] = [
        {"topic": topic, "partition": number} for topic, number in keys[:LISTED_MAX]
    ]
    return {"count": len(keys), "partitions": rows}


OPERATIONS = (
    Operation(
        "GET",
        "/overview",
        "The broker, its cluster, and partitions in trouble",
        _overview,
        Overview,
    ),
)
