"""``kbroker log``: the command ``kbroker-log`` under another name."""

from __future__ import annotations

from collections.abc import Sequence


def main(given: Sequence[str]) -> int:
    """Returns its exit code."""
    from kbroker.cli import log

    return log.main(given, "kbroker log")
