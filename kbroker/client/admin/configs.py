"""The configs of topics, brokers, groups and client metrics: read, set and unset. Any Kafka from
2.3; reading from 0.11.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.controller_calls import ask_controller, check
from kbroker.client.errors import RejectedError, UnsupportedByBroker
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.describe_configs import DescribeConfigsRequest

# WIRE: types of resources.
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
KINDS = {
    "topic": TOPIC,
    "broker": BROKER,
    "broker-logger": BROKER_LOGGER,
    "client-metrics": CLIENT_METRICS,
    "group": GROUP,
}
# WIRE: where a value comes from (KIP-226, KIP-714, KIP-848).
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
# The source of a resource's own values, as opposed to inherited ones.
_OWN = {
    TOPIC: {"DYNAMIC_TOPIC_CONFIG"},
    BROKER: {"DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG"},
    BROKER_LOGGER: {"DYNAMIC_BROKER_LOGGER_CONFIG"},
    CLIENT_METRICS: {"DYNAMIC_CLIENT_METRICS_CONFIG"},
    GROUP: {"DYNAMIC_GROUP_CONFIG"},
}
_SET, _DELETE = 0, 1


class Setting(NamedTuple):
    """value: None if it is sensitive or has none. source: a word of ``SOURCES``. own: whether it
    was set for this resource, by a client. documentation: empty before Kafka 2.6. synonyms: where
    the value would come from, (source, name, value), the first counts; only if asked for.
    """

    name: str
    value: str | None
    source: str
    own: bool
    read_only: bool
    sensitive: bool
    documentation: str
    synonyms: tuple[tuple[str, str, str | None], ...] = ()


def describe_configs(
    cluster: Cluster,
    kind: int,
    names: Iterable[str],
    keys: Iterable[str] | None = None,
    *,
    documentation: bool = False,
    synonyms: bool = False,
) -> dict[str, list[Setting] | RejectedError]:
    """The settings of resources of one kind, sorted; an error for those that are rejected.

    names: of topics, groups, ...; ids of brokers, where the empty name is the default of all.
    keys: only these settings.
    """
    wanted = None if keys is None else list(keys)
    results: dict[str, list[Setting] | RejectedError] = {}
    row = DescribeConfigsRequest.DescribeConfigsResource
    by_node: dict[int | None, list[Any]] = {}
    for name in dict.fromkeys(names):
        by_node.setdefault(_node_of(kind, name), []).append(
            row(resource_type=kind, resource_name=name, configuration_keys=wanted)
        )
    for node, rows in by_node.items():
        request = DescribeConfigsRequest(
            resources=rows, include_synonyms=synonyms, include_documentation=documentation
        )
        response = cluster.call(node, request, what="describe configs")
        for result in response.results:
            results[result.resource_name] = _settings(kind, result)
    return results


def _node_of(kind: int, name: str) -> int | None:
    """The broker that knows; None: any."""
    return int(name) if kind in (BROKER, BROKER_LOGGER) and name else None


def _settings(kind: int, result: Any) -> list[Setting] | RejectedError:
    if result.error_code:
        return RejectedError(
            result.error_code, f"configs of {result.resource_name}", result.error_message
        )
    settings = []
    for row in result.configs:
        source = SOURCES.get(row.config_source, f"UNKNOWN({row.config_source})")
        if row.config_source == -1:  # version 0
            source = "DEFAULT_CONFIG" if row.is_default else ""
        settings.append(
            Setting(
                row.name,
                row.value,
                source,
                source in _OWN[kind],
                row.read_only,
                row.is_sensitive,
                row.documentation or "",
                tuple(
                    (SOURCES.get(each.source, f"UNKNOWN({each.source})"), each.name, each.value)
                    for each in row.synonyms
                ),
            )
        )
    return sorted(settings)


def list_resources(cluster: Cluster, kind: int) -> list[str]:
    """Names of the resources of a kind that have settings. From Kafka 4.1, of client metrics from
    3.7. Raises RejectedError.
    """
    from kbroker.protocol.messages.list_config_resources import ListConfigResourcesRequest

    try:
        request = ListConfigResourcesRequest(resource_types=[kind])
        response = cluster.call(None, request, what="list config resources")
    except UnsupportedByBroker:
        if kind != CLIENT_METRICS:
            raise
        # COMPAT: version 0 of the request is for these alone, and has no kind.
        request = ListConfigResourcesRequest()
        response = cluster.call(None, request, what="list client metrics resources")
    check(response, "list config resources")
    return [row.resource_name for row in response.config_resources if row.resource_type == kind]


def alter_configs(
    cluster: Cluster,
    kind: int,
    name: str,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
) -> None:
    """Set or unset (None) settings of one resource, all or none of them; others stay.

    name: the empty one is the default of all brokers. Raises RejectedError.
    """
    from kbroker.protocol.messages.incremental_alter_configs import (
        IncrementalAlterConfigsRequest,
    )

    configs = [
        IncrementalAlterConfigsRequest.AlterableConfig(
            name=key, config_operation=_DELETE if value is None else _SET, value=value
        )
        for key, value in changes.items()
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    node = _node_of(kind, name)
    what = "alter configs"
    if node is None:
        response = ask_controller(
            cluster,
            request,
            what,
            # The controller knows all topics: a missing one is not waited for.
            lambda found: [
                row.error_code
                for row in found.responses
                if row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ],
        )
    else:
        response = cluster.call(node, request, what=what)
    for result in response.responses:
        check(result, f"configs of {name or 'all brokers'}")
