"""What a member that subscribes by a pattern sees of the topics that match it.

A group records all topics that match a pattern, whoever its members are. Each member is assigned
those of them that its principal may describe. COMPAT: Kafka 4 records what the member may describe
whose heartbeat has the pattern matched, and assigns that to all members with this pattern.

Who a member is, is known from its last heartbeat and not recorded. After a load, a member has no
sight until its next heartbeat, which hides from it what it may not describe.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.security.access import Access
from kbroker.security.operations import AclOperation, Kind

REQUEST = "ConsumerGroupHeartbeat"
NOTHING: frozenset[str] = frozenset()


class Sight(NamedTuple):
    """hidden: those of the matched topics that the member may not describe. version: of the access
    when that was looked up.
    """

    access: Access
    version: int
    matched: frozenset[str]
    hidden: frozenset[str]


def look(access: Access, matched: frozenset[str], before: Sight | None) -> Sight:
    """The sight of a member whose pattern matches these topics. before: the last one."""
    if (
        before is not None
        and before.access is access
        and before.version == access.version
        and before.matched is matched
    ):
        return before
    hidden = NOTHING
    if not access.everything:
        operation, kind = AclOperation.DESCRIBE, Kind.TOPIC
        seen = access.allowed(operation, kind, matched, REQUEST, is_filter=True)
        hidden = frozenset(name for name in matched if name not in seen)
    return Sight(access, access.version, matched, hidden)


def hidden_from(sight: Sight | None, matched: frozenset[str]) -> frozenset[str]:
    """What of the matched topics a member does not see, of whom nothing newer is known."""
    return NOTHING if sight is None else look(sight.access, matched, sight).hidden
