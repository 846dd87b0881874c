"""Who uses the console, and what the user may do with the cluster."""

from __future__ import annotations

from kbroker.client.admin.rights import rights_on_cluster
from kbroker.client.errors import ClientError
from kbroker.console.answers import Session
from kbroker.console.operation import CheckedRequest, Operation

ANONYMOUS = "ANONYMOUS"


def _session(asked: CheckedRequest) -> Session:
    try:
        rights = rights_on_cluster(asked.cluster)
    except ClientError:
        rights = None
    return {
        "user": asked.user or ANONYMOUS,
        "logged_in": asked.user is not None,
        "takes_passwords": any(door.mechanisms for door in asked.broker.doors),
        "read_only": asked.broker.read_only,
        "rights": rights,
    }


OPERATIONS = (
    Operation(
        "GET",
        "/session",
        "Who asks, and what the user may do with the cluster",
        _session,
        Session,
    ),
)
