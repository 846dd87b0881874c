"""JAAS texts and files, as Kafka's properties have them. Only the text is read: no class is loaded.

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";

Words may be quoted; a file has such entries in sections: ``KafkaServer { ...; };``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

FLAGS = frozenset(("required", "requisite", "sufficient", "optional"))
# BOUND: characters of a text or file.
CHARS_MAX = 1 << 20
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/)
    |(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[;={}])
    |(?P<word>[^\s"'=;{}]+)""",
    re.VERBOSE | re.DOTALL,
)


class JaasError(ValueError):
    """The text is malformed. The message contains nothing of it but positions and names."""


class JaasEntry(NamedTuple):
    """An entry. module: a Java class's name, which only tells the kind."""

    module: str
    options: dict[str, str]

    @property
    def kind(self) -> str:
        """The class without its package."""
        return self.module.rpartition(".")[2]


def parse(text: str) -> list[JaasEntry]:
    """The entries of a ``sasl.jaas.config``. Raises JaasError."""
    tokens = _Tokens(text)
    logins = []
    while tokens.rest:
        logins.append(tokens.login())
    if not logins:
        raise JaasError("it has no login module")
    return logins


def parse_file(text: str) -> dict[str, list[JaasEntry]]:
    """The entries of a JAAS file, by section. Raises JaasError."""
    tokens = _Tokens(text)
    sections: dict[str, list[JaasEntry]] = {}
    while tokens.rest:
        name = tokens.take("the name of a section")
        tokens.expect("{")
        sections[name] = []
        while not tokens.is_next("}"):
            sections[name].append(tokens.login())
        tokens.expect("}")
        tokens.expect(";")
    return sections


class _Tokens:
    """The words and signs of a text; a sign is a tuple, so that a quoted ';' is none."""

    def __init__(self, text: str) -> None:
        if len(text) > CHARS_MAX:
            raise JaasError(f"it has more than {CHARS_MAX} characters")
        self.rest: list[str | tuple[str]] = list(_tokens(text))
        self.rest.reverse()

    def is_next(self, sign: str) -> bool:
        return bool(self.rest) and self.rest[-1] == (sign,)

    def take(self, what: str) -> str:
        if not self.rest or isinstance(self.rest[-1], tuple):
            token = self.rest[-1][0] if self.rest else "the end"
            raise JaasError(f"{what} is expected, not {token}")
        word = self.rest.pop()
        assert isinstance(word, str)
        return word

    def expect(self, sign: str) -> None:
        if not self.is_next(sign):
            raise JaasError(f"a '{sign}' is missing")
        self.rest.pop()

    def login(self) -> JaasEntry:
        module = self.take("the name of a login module")
        flag = self.take("a control flag")
        if flag.lower() not in FLAGS:
            raise JaasError(f"after {module} there must be 'required'")
        options = {}
        while not self.is_next(";"):
            name = self.take("an option or ';'")
            self.expect("=")
            options[name] = self.take(f"a value of {name}")
        self.expect(";")
        return JaasEntry(module, options)


def _tokens(text: str) -> Iterator[str | tuple[str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise JaasError(f"a quotation mark at character {at + 1} has no other one on its line")
        at = match.end()
        if match["quoted"]:
            yield re.sub(r"\\(.)", _unescaped, match["quoted"][1:-1])
        elif match["sign"]:
            yield (match["sign"],)
        elif match["word"]:
            yield match["word"]


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[1])
