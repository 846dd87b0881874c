"""Features that Kafka 2.7 does not know (KIP-584): what is supported, and what is in effect.

A broker on its own has all of them at the highest level. In a cluster a feature is in effect at the
level that is finalized in the store, because another broker may have to read what this one writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

GROUP_VERSION = "group.version"
TRANSACTION_VERSION = "transaction.version"
# The highest level of each. 0 stands for a feature that is not in effect.
SUPPORTED: Mapping[str, int] = {GROUP_VERSION: 1, TRANSACTION_VERSION: 2}
# From these levels on groups of the consumer protocol are served (KIP-848), and records of
# transactions have fields that Kafka 2.7 cannot read (KIP-890).
CONSUMER_GROUPS = 1
FLEXIBLE_RECORDS = 1


class Finalized(NamedTuple):
    """The levels in effect, of features above 0. ``epoch``: grows with every change; clients keep
    what has the highest.
    """

    levels: Mapping[str, int]
    epoch: int

    def level(self, feature: str) -> int:
        return self.levels.get(feature, 0)


ALL = Finalized(SUPPORTED, 1)
NONE = Finalized({}, 0)


def unsupported(levels: Mapping[str, int], supported: Mapping[str, int] = SUPPORTED) -> list[str]:
    """Those of the levels that a broker does not support, as text."""
    lacking = (name for name, level in levels.items() if level > supported.get(name, 0))
    return [f"{name} {levels[name]}" for name in sorted(lacking)]
