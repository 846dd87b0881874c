"""``ssl.principal.mapping.rules``: the principal's name, from the subject of a certificate.

Rules are separated by commas, and the first that matches the whole subject counts: ``DEFAULT``,
which takes it as it is, or ``RULE:pattern/replacement/`` with ``L`` or ``U`` behind it for lower or
upper case. In the replacement, ``$1`` is the first group, and ``${n}`` the one named ``n``. Slashes
in a rule are escaped: ``\\/``.

Patterns are those of ``security.name_patterns``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from kbroker.security.name_patterns import BadPattern, compiled, replaced

# BOUND: of all rules together.
RULES_CHARS_MAX = 8192
_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)
_DEFAULT = "DEFAULT"
_SPACE = " \t\n\r\f\v"


class MappingRuleError(ValueError):
    """A rule that is not understood; the message names it."""


class MappingRule(NamedTuple):
    """pattern: None for DEFAULT. case: L, U or empty."""

    pattern: Any
    replacement: str
    case: str


class PrincipalMapping:
    """Rules in their order. Raises MappingRuleError."""

    def __init__(self, rules: str) -> None:
        if len(rules) > RULES_CHARS_MAX:
            raise MappingRuleError(f"the rules have more than {RULES_CHARS_MAX} characters")
        self._rules = list(_parse(rules.strip(_SPACE)))

    def name(self, subject: str) -> str | None:
        """The principal's name; None if no rule matches."""
        for rule in self._rules:
            if rule.pattern is None:
                return subject
            if rule.pattern.fullmatch(subject) is None:
                continue
            # COMPAT: every match is replaced, not the subject as a whole.
            name = replaced(rule.pattern, rule.replacement, subject)
            return name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
        return None


def _parse(text: str) -> Iterator[MappingRule]:
    at = 0
    while at < len(text):
        if text[at] in _SPACE + ",":  # COMPAT: empty rules are ignored
            at += 1
            continue
        match = _RULE.match(text, at)
        if match is not None:
            at = match.end()
            try:
                yield MappingRule(compiled(match[1], match[2]), match[2], match[3])
            except BadPattern as error:
                raise MappingRuleError(str(error)) from error
        elif text.startswith(_DEFAULT, at):
            at += len(_DEFAULT)
            yield MappingRule(None, "", "")
        else:
            raise MappingRuleError(f"{text[at : at + 80]!r} is neither DEFAULT nor RULE:…/…/[LU]")
        rest = text[at:].lstrip(_SPACE)
        if rest and not rest.startswith(","):
            raise MappingRuleError(f"{rest[:80]!r} follows a rule")
