"""``ssl.principal.mapping.rules``: the principal's name, from the subject of a certificate.

Rules are separated by commas, and the first that matches the whole subject counts: ``DEFAULT``,
which takes it as it is, or ``RULE:pattern/replacement/`` with ``L`` or ``U`` behind it for lower or
upper case. In the replacement, ``$1`` is the first group. Slashes in a rule are escaped: ``\\/``.

RE2 matches in time linear in the subject, which anybody with a certificate chooses. It has no
back-references and no look-around; rules with these are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import re2

# BOUND: of all rules together, and of what a pattern compiles to.
RULES_CHARS_MAX = 8192
_MEMORY_MAX = 1 << 20
_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)
_DEFAULT = "DEFAULT"
_SPACE = " \t\n\r\f\v"


class BadRule(ValueError):
    """A rule that is not understood; the message names it."""


class Rule(NamedTuple):
    """pattern: None for DEFAULT. case: L, U or empty."""

    pattern: Any
    replacement: str
    case: str


class PrincipalMapping:
    """Rules in their order. Raises BadRule."""

    def __init__(self, rules: str) -> None:
        if len(rules) > RULES_CHARS_MAX:
            raise BadRule(f"the rules have more than {RULES_CHARS_MAX} characters")
        self._rules = list(_parse(rules.strip(_SPACE)))

    def name(self, subject: str) -> str | None:
        """The principal's name; None if no rule matches."""
        for rule in self._rules:
            if rule.pattern is None:
                return subject
            if rule.pattern.fullmatch(subject) is None:
                continue
            # COMPAT: every match is replaced, not the subject as a whole.
            name = str(rule.pattern.sub(lambda match, rule=rule: _filled(rule, match), subject))
            return name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
        return None


def _parse(text: str) -> Iterator[Rule]:
    at = 0
    while at < len(text):
        if text[at] in _SPACE + ",":  # COMPAT: empty rules are ignored
            at += 1
            continue
        match = _RULE.match(text, at)
        if match is not None:
            at = match.end()
            yield Rule(_compiled(match[1]), match[2], match[3])
        elif text.startswith(_DEFAULT, at):
            at += len(_DEFAULT)
            yield Rule(None, "", "")
        else:
            raise BadRule(f"{text[at : at + 80]!r} is neither DEFAULT nor RULE:…/…/[LU]")
        rest = text[at:].lstrip(_SPACE)
        if rest and not rest.startswith(","):
            raise BadRule(f"{rest[:80]!r} follows a rule")


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_MAX
    # Java's \/ is a slash; RE2 takes that, too.
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "replace")
        raise BadRule(f"the pattern {pattern[:80]!r} is not supported: {reason}") from error


def _filled(rule: Rule, match: Any) -> str:
    r"""The replacement as Java fills it in: $n is a group, \ escapes what follows.

    COMPAT: of $12, the longest number counts that is a group; $n without such a group is text.
    """
    text, groups = rule.replacement, rule.pattern.groups
    out, at = [], 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            out.append(text[at])
            at += 1
        elif char == "$" and text[at : at + 1].isascii() and text[at : at + 1].isdigit():
            end = at + 1
            number = int(text[at])
            while end < len(text) and text[end].isascii() and text[end].isdigit():
                if number * 10 + int(text[end]) > groups:
                    break
                number = number * 10 + int(text[end])
                end += 1
            if number > groups:
                out.append(text[at - 1 : end])
            else:
                out.append(match.group(number) or "")
            at = end
        else:
            out.append(char)
    return "".join(out)
