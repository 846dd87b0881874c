"""A mirror whose target is its own source, or that another mirror copies back, would copy the same
records again and again: it is refused.

Clusters are compared by their ids, as one has many addresses. Another mirror is known by the client
id of its consumers, which names its target.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.client.admin.groups import describe_group, list_groups
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, RejectedError
from kbroker.protocol.messages.metadata import MetadataRequest

logger = logging.getLogger("kbroker.client.mirror")

# As a client id, with the id of the target behind it.
MARK = "kbroker-mirror-to-"
# BOUND: how long a start waits for either side; what is not known then is not compared.
_WAIT_S = 5.0
_WITHOUT_MEMBERS = {"Empty", "Dead"}


class CopiesInCircles(ClientError):
    """The mirror would copy what it has written itself."""


class Sides:
    """The clusters of a mirror. Raises CopiesInCircles if a source is the target."""

    def __init__(self, sources: Sequence[Mapping[str, Any]], target: Mapping[str, Any]) -> None:
        self._target = target
        self._target_id = _cluster_id(target)
        self._sources: dict[str, str] = {}
        for source in sources if self._target_id else ():
            cluster_id = _cluster_id(source)
            if cluster_id is None:
                continue
            self._sources[cluster_id] = str(source["bootstrap.servers"])
            if cluster_id == self._target_id:
                raise CopiesInCircles(
                    f"{source['bootstrap.servers']} and {target['bootstrap.servers']} are the same "
                    f"cluster ({cluster_id}): each topic would be copied into itself"
                )

    @property
    def client_id(self) -> str | None:
        """That of consumers, unless they are given another one."""
        return f"{MARK}{self._target_id}" if self._target_id else None

    def check(self, topics: re.Pattern[str]) -> None:
        """Raises CopiesInCircles if a mirror at the target copies these topics to a source."""
        if not self._sources:
            return
        try:
            with _connected(self._target) as cluster:
                for group in list_groups(cluster):
                    if group.state not in _WITHOUT_MEMBERS and group.protocol in ("", "consumer"):
                        self._check_group(cluster, group.group, topics)
        except CopiesInCircles:
            raise
        except ClientError as error:
            logger.info("cannot look for a mirror in the other direction: %s", error)

    def _check_group(self, cluster: Cluster, group: str, topics: re.Pattern[str]) -> None:
        try:
            members = describe_group(cluster, group).members
        except RejectedError:
            return  # it has gone, or is none of this user's business
        for member in members:
            source = self._source_of(member.client)
            copied = [topic for topic, _ in member.partitions if topics.fullmatch(topic)]
            if source is not None and copied:
                raise CopiesInCircles(
                    f"a mirror, group {group} at {self._target['bootstrap.servers']}, copies topic "
                    f"{copied[0]} to {source}: both would copy the same records again and again"
                )

    def _source_of(self, client_id: str) -> str | None:
        """The source that is the target of another mirror, by what its consumers are called."""
        for source_id, addresses in self._sources.items():
            # With a number behind it, if that mirror has several consumers.
            if re.fullmatch(re.escape(f"{MARK}{source_id}") + r"(-\d+)?", client_id):
                return addresses
        return None


def _connected(settings: Mapping[str, Any]) -> Cluster:
    return Cluster.from_options(settings, request_timeout=_WAIT_S, deadline=_WAIT_S)


def _cluster_id(settings: Mapping[str, Any]) -> str | None:
    """None if it cannot be told now, or the brokers have none (before Kafka 0.10.1)."""
    try:
        with _connected(settings) as cluster:
            response = cluster.call(None, MetadataRequest(topics=[]), what="the cluster id")
            cluster_id: str | None = response.cluster_id
            return cluster_id
    except ClientError:
        return None
