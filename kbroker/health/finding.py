"""A finding: something that is wrong, what it costs, and the command that mends it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

CRITICAL, WARNING = "critical", "warning"
BROKER, CLUSTER = "broker", "cluster"
# What a finding of a broker fails: that it lives, serves, takes writes, is as it should be.
LIVE, READY, WRITES, HEALTHY = "live", "ready", "writes", "healthy"
NOTHING: frozenset[str] = frozenset()
_ORDER = {CRITICAL: 0, WARNING: 1}


class Finding(NamedTuple):
    """One thing that is wrong.

    kind: a word for programs, the same in all releases. scope: BROKER or CLUSTER. subject: the
    process, directory, broker, topic or group. what: what is wrong with it. cost: what that means
    for clients. command: what mends it, or says more; None if no command does. since_ms: of the
    wall clock, since 1970; None if nobody knows. fails: of LIVE, READY, WRITES and HEALTHY. check:
    the name of the check of a probe that it fails.
    """

    kind: str
    severity: str
    scope: str
    subject: str
    what: str
    cost: str
    command: str | None = None
    since_ms: int | None = None
    fails: frozenset[str] = NOTHING
    check: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """As JSON shows it; what nobody knows is absent."""
        fields: dict[str, Any] = {
            "kind": self.kind,
            "severity": self.severity,
            "scope": self.scope,
            "subject": self.subject,
            "what": self.what,
            "cost": self.cost,
        }
        if self.command is not None:
            fields["command"] = self.command
        if self.since_ms is not None:
            fields["since_ms"] = self.since_ms
        return fields


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, otherwise in their order."""
    return sorted(findings, key=lambda finding: _ORDER[finding.severity])


def failing(findings: Iterable[Finding], what: str) -> list[Finding]:
    """Those that fail LIVE, READY, WRITES or HEALTHY."""
    return [finding for finding in findings if what in finding.fails]
