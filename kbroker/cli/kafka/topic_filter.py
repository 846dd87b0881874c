"""Which topics an option of Kafka's tools means: a regular expression, with commas for ``|``."""

from __future__ import annotations

import re
from collections.abc import Callable

from kbroker.cli.kafka.running import ToolFailed


def included(text: str | None) -> Callable[[str], bool]:
    """Whether a name is meant; without a text all are. Raises ToolFailed."""
    if text is None:
        return lambda name: True
    pattern = text.strip().replace(",", "|").replace(" ", "")
    pattern = pattern.lstrip("\"'").rstrip("\"'")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ToolFailed(f"{pattern} is an invalid regex.") from error
    return lambda name: compiled.fullmatch(name) is not None
