"""Where ``kafka-acls`` lists and changes ACLs: with the brokers, or in ZooKeeper itself, as
AclAuthorizer of Kafka 2.7 does, which needs no broker and asks none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from kbroker.cli.kafka.running import ToolFailed
from kbroker.cli.kafka.zookeeper_writing import change, names_below, read

if TYPE_CHECKING:
    from kbroker.client.admin.acls import Acl
    from kbroker.client.connections.cluster import Cluster
    from kbroker.client.zookeeper.znodes import Znodes
    from kbroker.metastore.acl_nodes import StoredAcls
    from kbroker.security.acls import AccessControlEntry, AclFilter, ResourcePattern


class AclPlace(Protocol):
    """All raise ClientError, those of ZooKeeper also ToolFailed."""

    def matching(self, wanted: Acl) -> list[Acl]:
        """The ACLs that match a filter."""

    def create(self, acls: list[Acl]) -> None: ...

    def delete(self, filters: list[Acl]) -> None: ...


class OfBrokers(AclPlace):
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def matching(self, wanted: Acl) -> list[Acl]:
        from kbroker.client.admin.acls import list_acls

        return list_acls(self._cluster, wanted)

    def create(self, acls: list[Acl]) -> None:
        from kbroker.client.admin.acls import create_acls

        create_acls(self._cluster, acls)

    def delete(self, filters: list[Acl]) -> None:
        from kbroker.client.admin.acls import delete_acls

        delete_acls(self._cluster, filters)


class OfZooKeeper(AclPlace):
    def __init__(self, nodes: Znodes) -> None:
        self._nodes = nodes

    def matching(self, wanted: Acl) -> list[Acl]:
        only = _filter(wanted)
        return sorted(
            _acl(resource, entry)
            for resource in self._resources(only)
            for entry in self._stored(resource).entries
            if only.matches_entry(entry)
        )

    def create(self, acls: list[Acl]) -> None:
        from kbroker.metastore.acl_nodes import is_storable
        from kbroker.security.acls import ResourcePattern

        wanted: dict[ResourcePattern, set[AccessControlEntry]] = {}
        for acl in acls:
            if not is_storable(acl.name or ""):
                raise ToolFailed(f"ZooKeeper cannot store ACLs of {acl.name!r}")
            number = _filter(acl)
            resource = ResourcePattern(number.kind, number.pattern, acl.name or "")
            wanted.setdefault(resource, set()).add(_entry(number))
        for resource, entries in wanted.items():
            self._change(resource, lambda present, new=entries: present | new)  # type: ignore[misc]

    def delete(self, filters: list[Acl]) -> None:
        for only in map(_filter, filters):
            for resource in list(self._resources(only)):
                self._change(
                    resource,
                    lambda present, only=only: {  # type: ignore[misc]
                        each for each in present if not only.matches_entry(each)
                    },
                )

    def _resources(self, only: AclFilter) -> Iterator[ResourcePattern]:
        """Those that have a node and match."""
        from kbroker.metastore import acl_nodes
        from kbroker.security.acls import PatternType, ResourcePattern
        from kbroker.security.operations import Kind

        for pattern in (PatternType.LITERAL, PatternType.PREFIXED):
            for kind in Kind:
                parent = acl_nodes.parent_of(ResourcePattern(kind, pattern, ""))
                for name in names_below(self._nodes, parent):
                    resource = ResourcePattern(int(kind), int(pattern), name)
                    if only.matches_resource(resource):
                        yield resource

    def _stored(self, resource: ResourcePattern) -> StoredAcls:
        from kbroker.metastore import acl_nodes

        present = read(self._nodes, acl_nodes.path_of(resource))
        return _decoded(resource, None if present is None else present[0])

    def _change(
        self,
        resource: ResourcePattern,
        changed: Callable[[set[AccessControlEntry]], set[AccessControlEntry]],
    ) -> None:
        from kbroker.metastore import acl_nodes
        from kbroker.security.acls import PatternType

        def rewritten(before: bytes | None) -> bytes | None:
            acls = _decoded(resource, before)
            after = acls._replace(entries=frozenset(changed(set(acls.entries))))
            if after == acls:
                return before
            return acl_nodes.encode(after) if after.entries or after.others else None

        notices = f"{acl_nodes.CHANGES[PatternType(resource.pattern)]}/{acl_nodes.CHANGE}"
        notice = notices, acl_nodes.encode_change(resource)
        change(self._nodes, acl_nodes.path_of(resource), rewritten, notice)


def _decoded(resource: ResourcePattern, data: bytes | None) -> StoredAcls:
    from kbroker.metastore import acl_nodes

    try:
        return acl_nodes.decode(data or b"")
    except (ValueError, KeyError) as error:
        path = acl_nodes.path_of(resource)
        raise ToolFailed(
            f"the ACLs in {path} cannot be read ({error!r}): correct the node"
        ) from None


def _filter(acl: Acl) -> AclFilter:
    from kbroker.client.admin.acls import OPERATIONS, PATTERN_TYPES, PERMISSIONS, RESOURCE_TYPES
    from kbroker.security.acls import AclFilter

    return AclFilter(
        RESOURCE_TYPES[acl.resource_type],
        acl.name,
        PATTERN_TYPES[acl.pattern],
        acl.principal,
        acl.host,
        OPERATIONS[acl.operation],
        PERMISSIONS[acl.permission],
    )


def _entry(acl: AclFilter) -> AccessControlEntry:
    from kbroker.security.acls import AccessControlEntry

    return AccessControlEntry(acl.principal or "", acl.host or "", acl.operation, acl.permission)


def _acl(resource: ResourcePattern, entry: AccessControlEntry) -> Acl:
    from kbroker.client.admin.acls import Acl
    from kbroker.security.acls import PatternType, Permission
    from kbroker.security.operations import AclOperation, Kind

    return Acl(
        Kind(resource.kind).name,
        resource.name,
        PatternType(resource.pattern).name,
        entry.principal,
        entry.host,
        AclOperation(entry.operation).name,
        Permission(entry.permission).name,
    )
