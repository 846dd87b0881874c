"""Which topics have settings that endanger their data, as this broker's image has them."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.config.topic_config import TopicConfig
from kbroker.handlers.context import RequestContext
from kbroker.health.settings import MIN_IN_SYNC, UNCLEAN, TopicFact, danger_of, endangered
from kbroker.security.operations import AclOperation, Kind

DANGERS = "endangered topics"  # in ``ClusterImage.derived``


def dangers_of(ctx: RequestContext) -> dict[str, list[object]]:
    """By danger, how many topics and the first of them, of those whose configs the client may
    describe. They are looked for again when the image has changed.
    """
    all_topics = ctx.image.derived.get(DANGERS)
    if all_topics is None:
        all_topics = endangered(_facts(ctx), len(ctx.image.brokers))
        ctx.image.derived[DANGERS] = all_topics
    dangers: dict[str, list[object]] = {}
    for danger, names in all_topics.items():
        shown = ctx.allowed(AclOperation.DESCRIBE_CONFIGS, Kind.TOPIC, names, is_filter=True)
        if seen := [name for name in names if name in shown]:
            dangers[danger] = list(danger_of(seen))
    return dangers


def _facts(ctx: RequestContext) -> Iterator[TopicFact]:
    """Thousands of topics have few kinds of settings."""
    by_config: dict[tuple[tuple[str, str], ...], tuple[int, bool]] = {}
    for topic in ctx.image.topics.values():
        if topic.internal:
            continue
        key = tuple(sorted(topic.config.items()))
        if key not in by_config:
            config = TopicConfig.stored(topic.config, ctx.config)
            by_config[key] = int(config[MIN_IN_SYNC]), bool(config[UNCLEAN])
        replicas = min((len(one.replicas) for one in topic.partitions), default=0)
        yield TopicFact(topic.name, replicas, *by_config[key])
