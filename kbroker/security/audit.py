"""The log of an authorizer's verdicts, in the words of Kafka's ``kafka.authorizer.logger``.

Denials are logged at INFO, each once in an interval for a principal, operation and resource, and
only so many for a principal: clients invent names. At DEBUG everything is logged. A hot path asks
about a name once until ACLs change, so of its requests only the first is here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable

from kbroker.logcontext import RateLimit
from kbroker.security.acls import title
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import KafkaPrincipal
from kbroker.wording import shown

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0
# BOUND: lines about one principal in an interval.
LINES_MAX = 100
# BOUND: principals whose lines are counted; when there are more, the count starts again.
PRINCIPALS_MAX = 1_000


class Audit:
    """Of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limit = RateLimit(INTERVAL_S, clock)
        # By principal: when its interval has begun, lines in it, and lines left out.
        self._lines: dict[KafkaPrincipal, tuple[float, int, int]] = {}

    def verdicts(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        kind: Kind,
        names: Iterable[str],
        allowed: Container[str],
        request: str,
        *,
        is_filter: bool = False,
    ) -> None:
        """Log verdicts. is_filter: nobody asked for these resources; what is denied is hidden."""
        everything = logger.isEnabledFor(logging.DEBUG)
        for name in names:
            verdict = name in allowed
            if everything:
                text = line(principal, host, operation, kind, name, verdict, request)
                logger.debug("%s", text, extra={"event": "audit.allowed"})
            elif not verdict and not is_filter:
                times = self._due(principal, operation, kind, name)
                if times:
                    text = line(principal, host, operation, kind, name, False, request)
                    more = f" ({times:,} times)" if times > 1 else ""
                    logger.info("%s%s", text, more, extra={"event": "audit.denied"})

    def _due(
        self, principal: KafkaPrincipal, operation: AclOperation, kind: Kind, name: str
    ) -> int:
        """How many denials the next line stands for; 0: none is due."""
        times = self._limit.due((principal, operation, kind, name))
        if not times:
            return 0
        now = self._clock()
        began, lines, left_out = self._lines.get(principal, (now, 0, 0))
        if now - began >= INTERVAL_S:
            if left_out:
                text = "%s was denied other resources, too: %s more lines in %d s are left out"
                logger.info(text, shown(str(principal)), f"{left_out:,}", INTERVAL_S)
            began, lines, left_out = now, 0, 0
        if principal not in self._lines and len(self._lines) >= PRINCIPALS_MAX:
            self._lines.clear()
        if lines >= LINES_MAX:
            self._lines[principal] = (began, lines, left_out + 1)
            return 0
        self._lines[principal] = (began, lines + 1, left_out)
        return times


def line(
    principal: KafkaPrincipal,
    host: str,
    operation: AclOperation,
    kind: Kind,
    name: str,
    verdict: bool,
    request: str,
) -> str:
    """As AclAuthorizer of Kafka 2.7 writes it: scripts look for its words."""
    return (
        f"Principal = {shown(str(principal))} is {'Allowed' if verdict else 'Denied'} "
        f"Operation = {title(operation)} from host = {host} on resource = "
        f"{title(kind)}:LITERAL:{shown(name)} for request = {request} with resourceRefCount = 1"
    )
