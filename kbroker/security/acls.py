"""ACLs as Kafka has them (KIP-290): what they consist of, and the filters of requests."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from kbroker.security.operations import AclOperation, Kind

E = TypeVar("E", bound=IntEnum)

# In filters: any kind of resource.
ANY_KIND = 1
# As a name, host or (``User:*``) principal of an ACL.
WILDCARD = "*"
EVERYBODY = "User:*"


class PatternType(IntEnum):
    """How the name of an ACL's resource is meant. ANY and MATCH stand in filters only."""

    ANY = 1
    MATCH = 2  # all patterns that match the name
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """ANY stands in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class ResourcePattern(NamedTuple):
    """What an ACL is about: a resource, those with a prefix, or all of a kind (literal ``*``)."""

    kind: int
    pattern: int
    name: str

    def __str__(self) -> str:
        kind, pattern = title(Kind(self.kind)), PatternType(self.pattern).name
        return f"{kind}:{pattern}:{self.name}"


class AccessControlEntry(NamedTuple):
    """Who may, or may not, do what."""

    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        permission, operation = Permission(self.permission), AclOperation(self.operation)
        return f"{title(permission)} {title(operation)} for {self.principal} from {self.host}"


class AclBinding(NamedTuple):
    resource: ResourcePattern
    entry: AccessControlEntry


class AclFilter(NamedTuple):
    """None, or ANY, matches everything."""

    kind: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches_resource(self, resource: ResourcePattern) -> bool:
        if self.kind not in (ANY_KIND, resource.kind):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, resource.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern != PatternType.MATCH:
            return self.name == resource.name
        if resource.pattern == PatternType.PREFIXED:
            return self.name.startswith(resource.name)
        return resource.name in (self.name, WILDCARD)

    def matches_entry(self, entry: AccessControlEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (AclOperation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )

    def named(self) -> Iterator[ResourcePattern]:
        """The resources that it names, if it can match only these."""
        if self.kind == ANY_KIND or self.name is None or self.pattern == PatternType.MATCH:
            return
        for pattern in (PatternType.LITERAL, PatternType.PREFIXED):
            if self.pattern in (PatternType.ANY, pattern):
                yield ResourcePattern(self.kind, pattern, self.name)


def title(member: IntEnum) -> str:
    """The member's name as in the metadata store and in Kafka's logs: ``AlterConfigs``."""
    return member.name.title().replace("_", "")


def by_title(cls: type[E], text: str) -> E | None:
    """The member with that name, in whatever case; None for an unknown one."""
    wanted = text.upper()
    for member in cls:
        if member.name.replace("_", "") == wanted or member.name == wanted:
            return member
    return None


def to_document(resource: ResourcePattern, entries: Any) -> list[Any]:
    """The JSON form in the cluster image."""
    return [*resource, [list(entry) for entry in entries]]


def from_document(document: Any) -> tuple[ResourcePattern, list[AccessControlEntry]]:
    """What ``to_document`` wrote. Raises ValueError."""
    try:
        kind, pattern, name, entries = document
        return ResourcePattern(kind, pattern, name), [
            AccessControlEntry(*entry) for entry in entries
        ]
    except (TypeError, ValueError) as error:
        raise ValueError(f"ACLs of the image: {error}") from error
