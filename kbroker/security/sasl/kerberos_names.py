"""``sasl.kerberos.principal.to.local.rules``: the user of a Kerberos principal.

The first rule that applies counts. ``DEFAULT`` applies to principals of the default realm, and is
their first component. ``RULE:[n:format](match)s/pattern/replacement/g`` applies to those with n
components, if ``match`` matches what ``format`` says as a whole; in it, ``$0`` is the realm, ``$1``
and ``$2`` are the components. All from ``(match)`` on may be absent; ``/L`` or ``/U`` behind it
makes lower or upper case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kbroker.security.name_patterns import BadPattern, compiled, replaced

# BOUND: characters of a principal, and of all rules together.
NAME_CHARS_MAX = 1024
RULES_CHARS_MAX = 8192
_COMPONENTS_MAX = 2
_NAME = re.compile(r"([^/@\\]+)(?:/([^/@\\]*))?@([^/@\\]+)")
_RULE = re.compile(
    r"RULE:\[([0-9]{1,3}):([^\]]*)\](?:\(([^)]*)\))?"
    r"(?:s/([^/]*)/([^/]*)/(g)?)?/?([LU])?"
)
_PARAMETER = re.compile(r"\$([0-9]*)")
_DEFAULT = "DEFAULT"


class KerberosRuleError(ValueError):
    """A rule that is malformed; the message has it."""


class NoUser(ValueError):
    """The principal is no user here; the message says why."""


class KerberosName(NamedTuple):
    """host: None if it has one component."""

    name: str
    host: str | None
    realm: str


def parse(text: str) -> KerberosName:
    """Raises NoUser.

    Kerberos escapes signs within a component by a backslash. COMPAT: Kafka cuts such a name at the
    escaped sign, so that a component could pose as two; here it is nobody's.
    """
    match = _NAME.fullmatch(text) if len(text) <= NAME_CHARS_MAX else None
    if match is None:
        raise NoUser(f"malformed Kerberos name: {text[:200]!r}")
    return KerberosName(match[1], match[2], match[3])


class KerberosRule(NamedTuple):
    """form: what ``match`` is matched with. match, pattern: None: anything, nothing is replaced.
    times: how often it is replaced, 0 for all. case: L, U or empty.
    """

    text: str
    components: int
    form: str
    match: Any
    pattern: Any
    replacement: str
    times: int
    case: str

    def applied(self, principal: KerberosName) -> str | None:
        """None if it does not apply."""
        parts = [principal.realm, principal.name]
        parts += [] if principal.host is None else [principal.host]
        if len(parts) - 1 != self.components:
            return None
        name = _PARAMETER.sub(lambda match: parts[int(match[1])], self.form)
        if self.match is not None and self.match.fullmatch(name) is None:
            return None
        if self.pattern is not None:
            name = replaced(self.pattern, self.replacement, name, self.times)
        return name


class PrincipalRules:
    """default_realm: empty if there is none. Raises KerberosRuleError."""

    def __init__(self, default_realm: str, rules: Sequence[str]) -> None:
        if sum(map(len, rules)) > RULES_CHARS_MAX:
            raise KerberosRuleError(f"the rules have more than {RULES_CHARS_MAX} characters")
        self._default_realm = default_realm
        self._rules = [None if text == _DEFAULT else _parsed(text) for text in rules]

    def user(self, principal: str) -> str:
        """Raises NoUser."""
        parsed = parse(principal)
        for rule in self._rules:
            if rule is None:
                user = parsed.name if parsed.realm == self._default_realm else None
            else:
                user = rule.applied(parsed)
            if user is None:
                continue
            if not user or "/" in user or "@" in user:
                shown = _DEFAULT if rule is None else rule.text
                raise NoUser(f"{shown} makes {user!r} of {principal!r}, which is no simple name")
            case = "" if rule is None else rule.case
            return user.lower() if case == "L" else user.upper() if case == "U" else user
        raise NoUser(f"no rule of sasl.kerberos.principal.to.local.rules applies to {principal!r}")


def _parsed(text: str) -> KerberosRule:
    parts = _RULE.match(text)
    if parts is None:
        raise KerberosRuleError(
            f"{text[:80]!r} is neither DEFAULT nor RULE:[n:format](match)s/…/…/g"
        )
    if parts.end() < len(text):
        raise KerberosRuleError(
            f"{text[parts.end() :][:80]!r} follows the rule {text[: parts.end()][:80]!r}"
        )
    components = int(parts[1])
    for number in _PARAMETER.findall(parts[2]):
        if not number or len(number) > 1 or int(number) > min(components, _COMPONENTS_MAX):
            raise KerberosRuleError(f"${number} in {text[:80]!r} is none of $0 to ${components}")
    try:
        match = None if parts[3] is None else compiled(parts[3])
        pattern = None if parts[4] is None else compiled(parts[4], parts[5])
    except BadPattern as error:
        raise KerberosRuleError(str(error)) from error
    times = 0 if parts[6] else 1
    return KerberosRule(
        text, components, parts[2], match, pattern, parts[5] or "", times, parts[7] or ""
    )
