"""An index of ACLs by resource, principal and host. Pure.

A verdict costs a look-up for the literal name, one for ``*``, and one for each length that a prefix
has, however many ACLs there are. The operations of a principal and host are kept as two masks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kbroker.security.acls import (
    EVERYBODY,
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
    ResourcePattern,
    from_document,
)
from kbroker.security.operations import AclOperation, mask

# Operations that an ACL allows besides its own; nothing more is denied by one.
_O = AclOperation
_ALLOWED_BY = {
    _O.DESCRIBE: mask((_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER)),
    _O.DESCRIBE_CONFIGS: mask((_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)),
}
_ALL = mask(AclOperation)


class Rights(NamedTuple):
    """The ACLs that match a name, a principal and a host, as masks of their operations.

    found: whether the name has any ACL, be it of others.
    """

    denied: int
    allowed: int
    found: bool

    def allows(self, operation: AclOperation) -> bool:
        """Whether one of them allows it and none denies it."""
        if self.denied >> operation & 1:
            return False
        return self.allowed & _ALLOWED_BY.get(operation, 1 << operation) != 0


# By host: operations denied, and allowed.
Hosts = dict[str, tuple[int, int]]
# Of one resource, by principal.
Rules = dict[str, Hosts]


class AclIndex:
    """``put`` is the only way it changes."""

    def __init__(self) -> None:
        self._entries: dict[ResourcePattern, frozenset[AccessControlEntry]] = {}
        self._rules: dict[ResourcePattern, Rules] = {}
        # Resources with rules of a principal.
        self._by_principal: dict[tuple[int, str], dict[ResourcePattern, Hosts]] = {}
        self._lengths: dict[int, Counter[int]] = {}  # of prefixes, by kind

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    @property
    def resources(self) -> Mapping[ResourcePattern, frozenset[AccessControlEntry]]:
        return self._entries

    def put(self, resource: ResourcePattern, entries: Iterable[AccessControlEntry]) -> None:
        """Replace all ACLs of a resource."""
        self._remove(resource)
        kept = frozenset(entries)
        if not kept:
            return
        self._entries[resource] = kept
        rules = self._rules[resource] = _rules(kept)
        for principal, hosts in rules.items():
            self._by_principal.setdefault((resource.kind, principal), {})[resource] = hosts
        if resource.pattern == PatternType.PREFIXED:
            self._lengths.setdefault(resource.kind, Counter())[len(resource.name)] += 1

    def _remove(self, resource: ResourcePattern) -> None:
        if self._entries.pop(resource, None) is None:
            return
        for principal in self._rules.pop(resource):
            owned = self._by_principal[resource.kind, principal]
            del owned[resource]
            if not owned:
                del self._by_principal[resource.kind, principal]
        if resource.pattern == PatternType.PREFIXED:
            lengths = self._lengths[resource.kind]
            lengths[len(resource.name)] -= 1
            if not lengths[len(resource.name)]:
                del lengths[len(resource.name)]

    def take(self, delta: Mapping[str, Any]) -> bool:
        """Take the ACLs of the cluster image, or a change of them; returns whether there are any.

        Raises ValueError.
        """
        documents = delta.get("acls")
        if documents is None:
            return False
        acls = dict(map(from_document, documents))
        if delta.get("snapshot"):
            for resource in self._entries.keys() - acls.keys():
                self._remove(resource)
        for resource, entries in acls.items():
            self.put(resource, entries)
        return True

    def matching(self, asked: AclFilter) -> Iterator[AclBinding]:
        """The ACLs that match a filter."""
        for resource, entries in self._entries.items():
            if asked.matches_resource(resource):
                for entry in entries:
                    if asked.matches_entry(entry):
                        yield AclBinding(resource, entry)

    # -- verdicts ----------------------------------------------------------------------------

    def rights(self, kind: int, name: str, principal: str, host: str) -> Rights:
        """What the ACLs of a resource say about a principal at a host."""
        denied = allowed = 0
        has_rules = False
        rules_of = self._rules
        for rules in self._matching_rules(kind, name, rules_of):
            has_rules = True
            for who in (principal, EVERYBODY):
                hosts = rules.get(who)
                if hosts is not None:
                    for where in (host, WILDCARD):
                        masks = hosts.get(where)
                        if masks is not None:
                            denied |= masks[0]
                            allowed |= masks[1]
        return Rights(denied, allowed, has_rules)

    def _matching_rules(
        self, kind: int, name: str, rules_of: Mapping[ResourcePattern, Rules]
    ) -> Iterator[Rules]:
        literal = rules_of.get(ResourcePattern(kind, PatternType.LITERAL, name))
        if literal is not None:
            yield literal
        if name != WILDCARD:
            everything = rules_of.get(ResourcePattern(kind, PatternType.LITERAL, WILDCARD))
            if everything is not None:
                yield everything
        for length in self._lengths.get(kind, ()):
            if length <= len(name):
                rules = rules_of.get(ResourcePattern(kind, PatternType.PREFIXED, name[:length]))
                if rules is not None:
                    yield rules

    def covers_all(self, kind: int) -> bool:
        """Whether every resource of the kind has ACLs."""
        return ResourcePattern(kind, PatternType.LITERAL, WILDCARD) in self._entries

    def allows_any(self, kind: int, principal: str, host: str, operation: AclOperation) -> bool:
        """Whether there is a name that it is allowed for, existing or not (KIP-679): an ACL allows
        it that no other denies as a whole. Operations are not implied by others here, as in Kafka.
        """
        denied, allowed = set[ResourcePattern](), set[ResourcePattern]()
        bit = 1 << operation
        for who in dict.fromkeys((principal, EVERYBODY)):
            for resource, hosts in self._by_principal.get((kind, who), {}).items():
                for where in (host, WILDCARD):
                    deny, allow = hosts.get(where, (0, 0))
                    if deny & bit:
                        denied.add(resource)
                    if allow & bit:
                        allowed.add(resource)
        if not denied:
            return bool(allowed)
        if ResourcePattern(kind, PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(not _is_dominated(resource, denied) for resource in allowed)


def _rules(entries: Iterable[AccessControlEntry]) -> Rules:
    rules: Rules = {}
    for principal, host, operation, permission in entries:
        hosts = rules.setdefault(principal, {})
        where = normal_host(host)
        denied, allowed = hosts.get(where, (0, 0))
        bits = _ALL if operation == AclOperation.ALL else 1 << operation
        if permission == Permission.DENY:
            denied |= bits
        elif permission == Permission.ALLOW:
            allowed |= bits
        hosts[where] = (denied, allowed)
    return rules


def _is_dominated(resource: ResourcePattern, denied: set[ResourcePattern]) -> bool:
    """Whether all names that the resource stands for are denied."""
    kind, pattern, name = resource
    if pattern == PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if resource in denied:
            return True
    return any(
        ResourcePattern(kind, PatternType.PREFIXED, name[:length]) in denied
        for length in range(len(name) + 1)
    )


def normal_host(host: str) -> str:
    """An address as ``connection.peer_host`` has it: IPv6 addresses have several forms, and tools
    of Kafka show the long one.
    """
    if ":" not in host:
        return host
    from ipaddress import IPv6Address  # costs every start some milliseconds

    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped
    return str(mapped if mapped is not None else address)
