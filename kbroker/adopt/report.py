"""Shows the plan as text."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.adopt.plan import AdoptionPlan, TopicPlan
from kbroker.uuids import uuid_text
from kbroker.wording import counted, size_text

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def plan_lines(plan: AdoptionPlan) -> Iterator[str]:
    """The plan, written for a reader who knows Kafka but not kbroker."""
    identity = plan.identity
    mode = "KRaft" if identity.is_kraft else "ZooKeeper"
    whose = f"broker {identity.broker_id}, cluster {identity.cluster_id}"
    yield f"Data of Apache Kafka in {mode} mode, {whose}"
    for directory in plan.directories:
        clean = "stopped cleanly" if directory.is_clean else "not stopped cleanly"
        yield f"  {directory.path}: {counted(len(directory.partitions), 'partition')}, {clean}"
    how_much = f"{counted(plan.partition_count, 'partition')}, {size_text(plan.size, _UNITS)}"
    yield f"Topics to register: {len(plan.topics)}, with {how_much}"
    width = max((len(topic.name) for topic in plan.topics), default=0)
    for topic in plan.topics:
        yield f"  {topic.name:<{width}}  {_topic_text(topic)}"
    for entity, config in plan.broker_configs.items():
        whose = "all brokers" if entity == "default" else f"broker {entity}"
        yield f"Settings of {whose}: {_settings_text(config)}"
    for group, config in plan.group_configs.items():
        yield f"Settings of group {group}: {_settings_text(config)}"
    if plan.features:
        yield f"Finalized features, kept for the way back: {_settings_text(plan.features)}"
    yield f"Next producer id: {plan.next_producer_id}"
    if plan.notes:
        yield "Take note:"
        for note in plan.notes:
            yield f"  - {note}"


def _topic_text(topic: TopicPlan) -> str:
    records = sum(log.end_offset - log.start_offset for log in topic.logs.values())
    parts = [
        counted(topic.partition_count, "partition"),
        size_text(topic.size, _UNITS),
        counted(records, "offset"),
        f"id {uuid_text(topic.topic_id)}",
    ]
    if topic.config:
        parts.append(_settings_text(topic.config))
    return ", ".join(parts)


def _settings_text(settings: dict[str, str] | dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())
