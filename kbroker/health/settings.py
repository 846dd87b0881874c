"""Settings of topics that endanger data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MIN_IN_SYNC, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
# From here on a broker may be lost, and acks=all still mean two copies.
ENOUGH_REPLICAS = 3
# BOUND: topics that a danger names.
NAMED_MAX = 10
# Dangers, in the order in which they are told.
ONE_COPY, IMPOSSIBLE, SINGLE, UNCLEAN_LEADER = "one-copy", "impossible", "single", "unclean-leader"
_ALTER = "kbroker topic alter {{topic}} -c {} -b {{bootstrap}}"


class TopicFact(NamedTuple):
    """replicas: of the partition with the fewest; 0 without partitions. in_sync:
    ``min.insync.replicas``, None if nobody knows. is_unclean: whether replicas that are not in sync
    may lead.
    """

    name: str
    replicas: int
    in_sync: int | None
    is_unclean: bool


class Danger(NamedTuple):
    """total: how many topics; topics: the first of them."""

    total: int
    topics: Sequence[str]


class SettingFact(NamedTuple):
    """A setting that endangers data. topics: with it, a few; total: of all. value: a better
    one, for the command.
    """

    setting: str
    value: str
    total: int
    topics: Sequence[str]
    cost: str
    better: str


def endangered(topics: Iterable[TopicFact], brokers: int) -> dict[str, list[str]]:
    """The names of topics by danger, sorted. brokers: how many are registered; with one, nothing
    can be replicated.
    """
    names_of: dict[str, list[str]] = {}
    for name, replicas, in_sync, is_unclean in topics:
        if replicas >= ENOUGH_REPLICAS and in_sync == 1:
            names_of.setdefault(ONE_COPY, []).append(name)
        if replicas == 1 and brokers > 1:
            names_of.setdefault(SINGLE, []).append(name)
        if replicas > 1 and is_unclean:
            names_of.setdefault(UNCLEAN_LEADER, []).append(name)
        if in_sync is not None and in_sync > replicas > 0:
            names_of.setdefault(IMPOSSIBLE, []).append(name)
    return {danger: sorted(names) for danger, names in names_of.items()}


def danger_of(names: Sequence[str]) -> Danger:
    return Danger(len(names), names[:NAMED_MAX])


def setting_facts(dangers: Mapping[str, Danger], brokers: int) -> list[SettingFact]:
    """What they cost, and what mends them. Dangers of a later release are left out."""
    rows = (
        (ONE_COPY, MIN_IN_SYNC, "1 with 3 replicas",
         "acks=all is answered with one copy, which may be lost with its broker",
         _ALTER.format(f"{MIN_IN_SYNC}=2")),
        (IMPOSSIBLE, MIN_IN_SYNC, "more than there are replicas",
         "acks=all is rejected while any replica is away, and always by Kafka before 3.9",
         _ALTER.format(f"{MIN_IN_SYNC}=1")),
        (SINGLE, "replication factor", f"1 with {brokers} brokers",
         "they are gone while their broker is, and for ever with its disk",
         "kafka-reassign-partitions --bootstrap-server {bootstrap} --generate "
         "--topics-to-move-json-file topics.json --broker-list 0,1,2"),
        (UNCLEAN_LEADER, UNCLEAN, "true",
         "a replica that is behind may become leader: records that were acknowledged are lost",
         _ALTER.format(f"{UNCLEAN}=false")),
    )  # fmt: skip
    return [
        SettingFact(setting, value, dangers[danger].total, dangers[danger].topics, cost, better)
        for danger, setting, value, cost, better in rows
        if danger in dangers
    ]
