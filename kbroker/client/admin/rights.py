"""What this user may do, as brokers tell it: authorized operations (KIP-430), from Kafka 2.3."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from kbroker.client.admin.acls import OPERATIONS
from kbroker.client.admin.groups import describe_group
from kbroker.client.admin.topics import describe_topics
from kbroker.client.admin.transactions import describe_transaction
from kbroker.client.connections.cluster import GROUP, Cluster
from kbroker.client.errors import ClientError, RejectedError
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.describe_groups import DescribeGroupsRequest
from kbroker.protocol.messages.metadata import MetadataRequest

# WIRE: what a broker sends that was not asked, or does not know.
_NOT_TOLD = -(1 << 31)
_NAMES = {code: name for name, code in OPERATIONS.items()}
_HIDDEN = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

Rights = list[str] | None


def rights_on_cluster(cluster: Cluster) -> Rights:
    """Words of Kafka's ACLs, such as ALTER; None if brokers do not tell. Raises ClientError."""
    from kbroker.protocol.messages.describe_cluster import DescribeClusterRequest

    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = cluster.call(None, request, what="rights on the cluster")
    return _words(response.cluster_authorized_operations)


def rights_on_topic(cluster: Cluster, topic: str) -> Rights:
    """The same. Raises ClientError."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    response = cluster.call(None, request, what=f"rights on topic {topic}")
    return _words(response.topics[0].topic_authorized_operations)


def rights_on_group(cluster: Cluster, group: str) -> Rights:
    """The same; None of groups of the consumer protocol. Raises ClientError."""
    response = cluster.call_coordinator(
        group,
        GROUP,
        DescribeGroupsRequest(groups=[group], include_authorized_operations=True),
        lambda found: 0,
        what=f"rights on group {group}",
    )
    row = response.groups[0]
    return None if row.error_code else _words(row.authorized_operations)


def sees_all_topics(cluster: Cluster) -> bool | None:
    """Whether a list of topics leaves out none for want of a right; None if nobody knows. Brokers
    tell by a name that nobody has: it is unknown to who may describe any, else forbidden.
    """
    return _sees(lambda name: describe_topics(cluster, [name]))


def sees_all_groups(cluster: Cluster) -> bool | None:
    """The same of groups."""
    return _sees(lambda name: describe_group(cluster, name))


def sees_all_transactions(cluster: Cluster) -> bool | None:
    """The same of transactional ids."""
    return _sees(lambda name: describe_transaction(cluster, name))


def _sees(describe: Callable[[str], object]) -> bool | None:
    try:
        describe("nobody-has-this-name-" + secrets.token_hex(8))
    except RejectedError as error:
        return error.code not in _HIDDEN
    except ClientError:
        return None
    return True


def _words(bits: Any) -> Rights:
    if bits == _NOT_TOLD:
        return None
    return [name for code, name in sorted(_NAMES.items()) if 0 < code < 31 and bits >> code & 1]
