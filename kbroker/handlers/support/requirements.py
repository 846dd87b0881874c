"""The authorization that a request needs, as declared by its handler (``authorize=``).

The names of resources are looked at when the request is decoded, before its handler runs; the first
that is not allowed ends the request. A handler whose response differs from resource to resource
declares ``each`` and asks for itself, by ``ctx.allowed``. Source: Kafka's table "Operations and
Resources on Protocols".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kbroker.errors import WireError
from kbroker.security.access import Access
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind

Names = Callable[[Any], Iterable[str]]


class Requirement(NamedTuple):
    """``operation`` on all resources of a kind that a request names; names None: see ``each``."""

    operation: AclOperation
    kind: Kind
    names: Names | None = None


Requirements = tuple[Requirement, ...]
# For the few requests that need no authorization.
NOTHING: Requirements = ()


def on_cluster(operation: AclOperation) -> Requirement:
    """The whole request is about the cluster."""
    return Requirement(operation, Kind.CLUSTER, lambda request: (CLUSTER_NAME,))


def on_group(operation: AclOperation) -> Requirement:
    """The whole request is about one group."""
    return Requirement(operation, Kind.GROUP, lambda request: (request.group_id,))


def on_transaction(operation: AclOperation) -> Requirement:
    """The whole request is about one transaction, or none."""
    return Requirement(
        operation,
        Kind.TRANSACTIONAL_ID,
        lambda request: () if request.transactional_id is None else (request.transactional_id,),
    )


def each(operation: AclOperation, kind: Kind) -> Requirement:
    """The handler checks the authorization, and rejects what is not allowed."""
    return Requirement(operation, kind)


def check(access: Access, requirements: Requirements, request: Any, title: str = "") -> None:
    """Raises WireError, with the kind's own code, for a request that the client may not make.

    title: the API, for the log.
    """
    if access.everything:
        return
    for operation, kind, names_of in requirements:
        if names_of is None:
            continue
        names = list(names_of(request))
        allowed = access.allowed(operation, kind, names, title)
        if not all(name in allowed for name in names):
            raise WireError(kind.error)
