"""Settings without what nobody but the broker may see."""

from __future__ import annotations

import re

from kbroker.config.broker_keys import BROKER_NAMES
from kbroker.config.loader import BrokerConfig, ConfigSource

HIDDEN = "(hidden)"
# In a value or a line: ``password=...``, ``"token": "..."``, ``scheme://user:password@host``.
# Compiled when they are used, which a broker does not.
_IN_TEXT = (
    r"(?i)((?:passw(?:or)?d|passwd|secret|token|credential)[\w.]*[\"']?\s*[=:]\s*)"
    r"(\"[^\"]*\"|'[^']*'|[^\s,;\"']+)"
)
_IN_ADDRESS = r"(://[^/\s:@]+:)[^/\s@]+(@)"


def masked_settings(config: BrokerConfig) -> dict[str, str]:
    """What the properties file and the command line set. A name that is not known hides its value:
    it may be that of a plug-in's password.
    """
    settings = dict(config.layers())[ConfigSource.STATIC_BROKER]
    masked = {}
    for name, text in sorted(settings.items()):
        key = BROKER_NAMES.get(name)
        masked[name] = HIDDEN if key is None or key.sensitive else text
    return masked


def _hidden(match: re.Match[str]) -> str:
    quote = match[2][0] if match[2][0] in "\"'" else ""
    return f"{match[1]}{quote}{HIDDEN}{quote}"


def without_secrets(text: str) -> str:
    """A text with what looks like passwords in it hidden."""
    text = re.sub(_IN_TEXT, _hidden, text)
    return re.sub(_IN_ADDRESS, rf"\1{HIDDEN}\2", text)
