"""The levels of ``metadata.version`` by the names that Kafka's tools print, and of the features
that a release has in effect by default.
"""

from __future__ import annotations

METADATA_VERSION = "metadata.version"
# Level 1 is of Kafka 3.0, which begins the count at IV1.
_RELEASES = (
    ("3.0", 1, 1), ("3.1", 0, 1), ("3.2", 0, 1), ("3.3", 0, 4), ("3.4", 0, 1), ("3.5", 0, 3),
    ("3.6", 0, 3), ("3.7", 0, 5), ("3.8", 0, 1), ("3.9", 0, 1), ("4.0", 0, 4), ("4.1", 0, 2),
    ("4.2", 0, 2), ("4.3", 0, 1), ("4.4", 0, 1),
)  # fmt: skip
NAMES = [
    f"{release}-IV{first + number}"
    for release, first, count in _RELEASES
    for number in range(count)
]
"""Of each level, from 1 on."""
LEAST, LATEST = "3.3-IV3", "4.3-IV0"
"""What Kafka 4.3 upgrades from, and its own."""
# Feature -> its level by default -> from which metadata version on.
_DEFAULTS = {
    "kraft.version": {1: "3.9-IV0"},
    "transaction.version": {2: "4.0-IV2"},
    "group.version": {1: "4.0-IV0"},
    "eligible.leader.replicas.version": {1: "4.1-IV0"},
    "share.version": {1: "4.2-IV0"},
    "streams.version": {1: "4.2-IV1"},
}
# Feature -> the highest level.
_HIGHEST = {name: max(levels) for name, levels in _DEFAULTS.items()}
_NEEDS = {("eligible.leader.replicas.version", 1): {METADATA_VERSION: 23}}


def shown(feature: str, level: int) -> str:
    """A level as it is printed: that of the metadata by its name."""
    if feature != METADATA_VERSION:
        return str(level)
    return NAMES[level - 1] if 0 < level <= len(NAMES) else f"UNKNOWN {level}"


def level_of(name: str) -> int:
    """The level of a metadata version by its name, or by a release: its last. Raises ValueError."""
    levels = [number for number, known in enumerate(NAMES, 1) if name in (known, known[:-4])]
    if not levels or levels[-1] <= NAMES.index(LEAST):
        raise ValueError(name)
    return levels[-1]


def defaults(level: int) -> dict[str, int]:
    """The features of a metadata version."""
    return {
        feature: max(
            (each for each, first in levels.items() if NAMES.index(first) < level), default=0
        )
        for feature, levels in _DEFAULTS.items()
    }


def needs(feature: str, level: int) -> dict[str, int]:
    """What a feature needs. Raises KeyError for an unknown one, ValueError for its level."""
    if not 0 <= level <= _HIGHEST[feature]:
        raise ValueError(level)
    return _NEEDS.get((feature, level), {})
