"""The plan of an adoption: topics, configs, and what cannot be kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from kbroker.adopt import logs, producer_ids
from kbroker.adopt.directories import DirectoryIdentity, LogDirectory
from kbroker.adopt.errors import Refusal
from kbroker.adopt.metadata_image import AdoptedTopic, MetadataImage
from kbroker.adopt.metadata_log import DIRECTORY as METADATA_DIRECTORY
from kbroker.adopt.metadata_log import read_metadata
from kbroker.adopt.remote_storage import LogStarts
from kbroker.adopt.settings import (
    kept_broker_settings,
    kept_group_settings,
    kept_topic_settings,
    leave_out_older_format,
    other_settings,
)
from kbroker.cluster.found_topics import settings_when_found
from kbroker.internal_topics import INTERNAL_TOPICS, TRANSACTIONS_TOPIC
from kbroker.storage.dirs.partition_metadata import (
    CorruptMetadataError,
    read_partition_metadata,
)
from kbroker.uuids import new_uuid, uuid_text
from kbroker.wording import counted

# KRaft's ids for "directory unknown" and others that name none (KIP-858).
_RESERVED_IDS = 100

Progress = Callable[[str], None]


class TopicPlan:
    """A topic as it will be registered."""

    __slots__ = ("config", "empty", "leader_epochs", "logs", "name", "registered", "topic_id")

    def __init__(self, name: str, topic_id: bytes, config: dict[str, str]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.config = config
        self.logs: dict[int, logs.FoundLog] = {}
        # Partitions without a directory: they start empty.
        self.empty: list[int] = []
        self.leader_epochs: dict[int, int] = {}
        # Partitions that the metadata store has already.
        self.registered = 0

    @property
    def partition_count(self) -> int:
        return self.registered + len(self.logs) + len(self.empty)

    @property
    def size(self) -> int:
        return sum(log.size for log in self.logs.values())


class AdoptionPlan:
    """Everything that will be registered. ``notes``: for the user, before confirming."""

    def __init__(self, identity: DirectoryIdentity, directories: list[LogDirectory]) -> None:
        self.identity = identity
        self.directories = directories
        self.topics: list[TopicPlan] = []
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.group_configs: dict[str, dict[str, str]] = {}
        self.features: dict[str, int] = {}
        self.next_producer_id = 0
        self.metadata_end_offset: int | None = None
        self.settings_known = True
        self.notes: list[str] = []
        # Topics on disk that the metadata does not know, with the ids in their directories.
        self.left_alone: dict[str, set[bytes]] = {}

    @property
    def partition_count(self) -> int:
        return sum(topic.partition_count for topic in self.topics)

    @property
    def size(self) -> int:
        return sum(topic.size for topic in self.topics)


def plan_for(
    directories: list[LogDirectory],
    *,
    metadata_log_dir: str | None = None,
    zookeeper: str | None = None,
    without_metadata: bool = False,
    without_remote_records: bool = False,
    missing_begin_empty: bool = False,
    progress: Progress = lambda _text: None,
) -> AdoptionPlan:
    """Read everything, change nothing. Raises Refusal, OSError.

    metadata_log_dir: where ``__cluster_metadata-0`` is, if in none of the directories.
    zookeeper: where a Kafka in ZooKeeper mode keeps settings, which are unknown without it.
    without_metadata: KRaft's metadata log is lost, and with it the settings.
    without_remote_records, missing_begin_empty: records in remote storage are left behind,
    partitions that are not here are created empty, instead of a Refusal.
    """
    plan = AdoptionPlan(directories[0].identity, directories)
    metadata = find_metadata(directories, metadata_log_dir, is_lost=without_metadata)
    if metadata is None and zookeeper is not None:
        from kbroker.adopt.zookeeper import read_metadata as read_zookeeper

        metadata = read_zookeeper(zookeeper, plan.identity)
    starts = LogStarts(metadata, leave_behind=without_remote_records)
    logs_by_topic = _look_at_logs(directories, metadata, starts, progress)
    plan.notes += starts.notes
    if metadata is None:
        _plan_without_metadata(plan, logs_by_topic)
    else:
        _plan_from_metadata(plan, metadata, logs_by_topic)
    _check_missing(plan, metadata, missing_begin_empty)
    _plan_producer_ids(plan, metadata)
    for directory in directories:
        for name, reason in directory.left_alone.items():
            plan.notes.append(f"{directory.path}/{name} is left as it is: {reason}.")
    if not all(directory.is_clean for directory in directories):
        plan.notes.append(
            "Kafka was not stopped cleanly: the first start of the broker recovers the logs from "
            "their recovery points and truncates incomplete writes."
        )
    return plan


def plan_without_metadata(
    directories: list[LogDirectory],
    *,
    known: Mapping[str, int],
    missing_begin_empty: bool = False,
) -> AdoptionPlan:
    """A plan from the directories alone, without metadata.

    known: topics of which so many partitions are registered already; they are in no directory here.
    Raises Refusal, OSError.
    """
    plan = AdoptionPlan(directories[0].identity, directories)
    starts = LogStarts(None, leave_behind=True)
    _plan_without_metadata(plan, _look_at_logs(directories, None, starts, lambda _text: None))
    for topic in plan.topics:
        topic.registered = known.get(topic.name, 0)
        topic.empty = [number for number in topic.empty if number >= topic.registered]
    _check_missing(plan, None, missing_begin_empty)
    return plan


def find_metadata(
    directories: list[LogDirectory], metadata_log_dir: str | None, *, is_lost: bool = False
) -> MetadataImage | None:
    """The metadata log, None in ZooKeeper mode, and if it is lost. Raises Refusal, OSError."""
    if not directories[0].identity.is_kraft:
        return None
    places = [directory.path for directory in directories]
    if metadata_log_dir is not None and metadata_log_dir not in places:
        places.append(metadata_log_dir)
    having = [
        path for place in places if os.path.isdir(path := os.path.join(place, METADATA_DIRECTORY))
    ]
    if is_lost:
        if having:
            raise Refusal(
                f"{having[0]} exists. Leave out --without-metadata, or move that directory away "
                "if it should not be used"
            )
        return None
    if not having:
        raise Refusal(
            f"{places[0]}/{METADATA_DIRECTORY}: missing, and with it the topics' settings. It is "
            "in the first of log.dirs, or in metadata.log.dir: give that with "
            "--metadata-log-dir. If it is lost, --without-metadata takes the topics over without "
            "their settings"
        )
    if len(having) > 1:
        raise Refusal(
            f"{having[1]}: {having[0]} also has the metadata log; keep the one in use and move "
            "the other away"
        )
    was_clean = all(directory.is_clean for directory in directories)
    return read_metadata(having[0], was_clean=was_clean)


# ---- what is on disk ----

Found = dict[str, dict[int, logs.FoundLog]]


def _look_at_logs(
    directories: list[LogDirectory],
    metadata: MetadataImage | None,
    starts: LogStarts,
    progress: Progress,
) -> Found:
    compacted = None
    if metadata is not None:
        names = {topic.name for topic in metadata.topics.values()}
        compacted = {
            name
            for name in names
            if "compact" in kept_topic_settings(metadata, name)[0].get("cleanup.policy", "")
        }
    logs_by_topic: Found = {}
    total = sum(len(directory.partitions) for directory in directories)
    done = 0
    for directory in directories:
        for key, path in directory.partitions.items():
            gaps = key in directory.cleaned or key[0] in INTERNAL_TOPICS
            gaps = gaps or (compacted is not None and key[0] in compacted)
            log = logs_by_topic.setdefault(key[0], {})[key[1]] = logs.look_at(
                path,
                directory.recovery_points.get(key, 0),
                directory.log_starts.get(key, 0),
                gaps_allowed=gaps,
                was_clean=directory.is_clean,
            )
            starts.check(key, directory, log)
            done += 1
            progress(f"checked {done:,} of {counted(total, 'partition')}, {path}")
    return logs_by_topic


def _topic_id(name: str, logs_here: Mapping[int, logs.FoundLog]) -> bytes | None:
    """The id that the partitions' directories agree on. Raises Refusal."""
    topic_id: bytes | None = None
    for log in logs_here.values():
        try:
            here = read_partition_metadata(log.path)
        except CorruptMetadataError as error:
            raise Refusal(
                f"{error}; remove it if the other partitions of {name} have theirs, or restore it "
                "from a backup"
            ) from error
        if here is not None and topic_id not in (None, here):
            assert topic_id is not None
            raise Refusal(
                f"{log.path}/partition.metadata: topic id {uuid_text(here)}, but"
                f" {uuid_text(topic_id)} in another partition of {name}; one of them belongs"
                " to a deleted topic of the same name: move its directory away"
            )
        topic_id = here or topic_id
    return topic_id


def _add_topic(
    plan: AdoptionPlan, name: str, topic_id: bytes, config: dict[str, str], count: int,
    logs_here: Mapping[int, logs.FoundLog],
) -> TopicPlan:  # fmt: skip
    topic = TopicPlan(name, topic_id, config)
    for number in range(count):
        log = logs_here.get(number)
        if log is None:
            topic.empty.append(number)
            continue
        topic.logs[number] = log
        if log.leader_epoch is not None:
            # A new leader has a new epoch; it must be above all epochs in the log.
            topic.leader_epochs[number] = log.leader_epoch + 1
    plan.topics.append(topic)
    return topic


# ---- KRaft: the metadata log says it all ----


def _plan_from_metadata(plan: AdoptionPlan, metadata: MetadataImage, logs_by_topic: Found) -> None:
    if plan.identity.is_kraft:
        plan.metadata_end_offset = metadata.end_offset
    plan.features = dict(sorted(metadata.features.items()))
    for image in sorted(metadata.topics.values(), key=lambda one: one.name):
        here = logs_by_topic.pop(image.name, {})
        _check_topic(plan, image, here)
        config, notes = kept_topic_settings(metadata, image.name)
        if plan.identity.is_kraft:
            notes += leave_out_older_format(image.name, config)
        plan.notes += notes
        topic_id = image.topic_id
        if image.id_is_made_up:
            topic_id = _topic_id(image.name, here) or topic_id
        count = max(image.partitions, default=-1) + 1
        topic = _add_topic(plan, image.name, topic_id, config, count, here)
        for number, partition in image.partitions.items():
            known = topic.leader_epochs.get(number, 0)
            topic.leader_epochs[number] = max(known, partition.leader_epoch + 1)
    for name in sorted(logs_by_topic):
        ids = [_topic_id(name, {number: log}) for number, log in logs_by_topic[name].items()]
        plan.left_alone[name] = {topic_id for topic_id in ids if topic_id is not None}
        plan.notes.append(
            f"Topic {name} is on disk but not in the metadata: it was deleted, or another broker "
            "created it later. Its directories stay but are not served; if a topic of that name "
            "is created, it begins empty and they are renamed to -stray."
        )
    plan.broker_configs, notes = kept_broker_settings(metadata, plan.identity.broker_id)
    plan.notes += notes
    plan.group_configs, notes = kept_group_settings(metadata)
    plan.notes += notes
    for kind, what in (("acls", "access rule"), ("scram", "SCRAM credential"), ("quotas", "quota")):
        count = len(getattr(metadata, kind))
        if count:
            plan.notes.append(
                f"{counted(count, what)} of the cluster cannot be kept: kbroker does not support "
                "them yet."
            )
    plan.notes += other_settings(metadata)
    for number, count in sorted(metadata.unknown.items()):
        unknown = counted(count, "metadata record")
        plan.notes.append(f"Unknown: {unknown} of type {number}.")


def _check_topic(
    plan: AdoptionPlan, image: AdoptedTopic, here: Mapping[int, logs.FoundLog]
) -> None:
    on_disk = _topic_id(image.name, here)
    if on_disk not in (None, image.topic_id) and not image.id_is_made_up:
        assert on_disk is not None
        path = next(iter(here.values())).path
        raise Refusal(
            f"{path}/partition.metadata: topic id {uuid_text(on_disk)}, but the metadata says "
            f"{uuid_text(image.topic_id)}; the directory belongs to a deleted topic of the same "
            "name: move it away"
        )
    broker_id = plan.identity.broker_id
    others = {n for n, p in image.partitions.items() if set(p.replicas) - {broker_id}}
    if others:
        plan.notes.append(
            f"Topic {image.name}: replicas on other brokers are dropped, in {len(others)} of "
            f"{counted(len(image.partitions), 'partition')}; kbroker runs as a single broker."
        )
    behind = sorted(
        number
        for number, partition in image.partitions.items()
        if broker_id in set(partition.replicas) - {*partition.isr, *partition.eligible}
    )
    if behind:
        plan.notes.append(
            f"Topic {image.name}: partitions {behind} were not in sync here when the broker "
            "stopped; records that other brokers acknowledged may be missing."
        )


# ---- ZooKeeper mode: the settings were in ZooKeeper ----


def _plan_without_metadata(plan: AdoptionPlan, logs_by_topic: Found) -> None:
    plan.settings_known = False
    cleaned = {key[0] for directory in plan.directories for key in directory.cleaned}
    for name, here in sorted(logs_by_topic.items()):
        config = settings_when_found(name, name in cleaned)
        topic_id = _topic_id(name, here) or new_uuid()
        _add_topic(plan, name, topic_id, config, max(here) + 1, here)
    where, advice = "ZooKeeper", "Give that ZooKeeper with --zookeeper to take them over, or"
    if plan.identity.is_kraft:
        where, advice = METADATA_DIRECTORY, "You may"
    plan.notes.append(
        f"The topics' settings were in {where} and are unknown. So that nothing is deleted, "
        "topics get retention.ms=-1 and retention.bytes=-1, and cleanup.policy=compact where a "
        f"log was compacted. {advice} give each topic its own with kafka-configs once the broker "
        "runs."
    )
    plan.notes.append(
        "Partitions above the highest one found here, and replicas on other brokers, are unknown."
    )


# ---- both ----


def _check_missing(plan: AdoptionPlan, metadata: MetadataImage | None, begin_empty: bool) -> None:
    known = {
        directory.identity.directory_id: directory.path
        for directory in plan.directories
        if directory.identity.directory_id is not None
    }
    for topic in plan.topics:
        if topic.empty and begin_empty:
            plan.notes.append(
                f"Topic {topic.name}: partitions {topic.empty} are not here and will be created "
                "empty."
            )
        elif topic.empty:
            number = topic.empty[0]
            path = os.path.join(plan.directories[0].path, f"{topic.name}-{number}")
            where = _where(plan, metadata, topic, number, known)
            raise Refusal(
                f"{path}: missing{where}. Copy all partitions, give all directories of log.dirs, "
                "or use --missing-begin-empty to create the missing partitions empty"
            )


def _where(
    plan: AdoptionPlan,
    metadata: MetadataImage | None,
    topic: TopicPlan,
    number: int,
    known: Mapping[bytes, str],
) -> str:
    """A hint where a missing partition may be."""
    if metadata is None:
        return ", where other partitions of the topic are"
    images = (image for image in metadata.topics.values() if image.name == topic.name)
    partition = next(images).partitions.get(number)
    if partition is None:
        return ""
    if plan.identity.broker_id not in partition.replicas:
        return f": it is on brokers {partition.replicas}, this is broker {plan.identity.broker_id}"
    at = partition.replicas.index(plan.identity.broker_id)
    if at >= len(partition.directories):
        return ""
    directory_id = partition.directories[at]
    if directory_id in known:
        return f": it was in {known[directory_id]}"
    if int.from_bytes(directory_id, "big") < _RESERVED_IDS:
        return ""
    return f": it was in the directory with directory.id={uuid_text(directory_id)}"


def _plan_producer_ids(plan: AdoptionPlan, metadata: MetadataImage | None) -> None:
    known = [
        log.producer_id
        for topic in plan.topics
        for log in topic.logs.values()
        if log.producer_id is not None
    ]
    if metadata is not None and metadata.next_producer_id is not None:
        # Only a log from elsewhere could have a newer one.
        blocks = [(newest // producer_ids.BLOCK + 1) * producer_ids.BLOCK for newest in known]
        plan.next_producer_id = max([metadata.next_producer_id, *blocks])
        return
    for topic in plan.topics:
        if topic.name == TRANSACTIONS_TOPIC:
            for log in topic.logs.values():
                known += producer_ids.in_transaction_log(log.path)
    plan.next_producer_id = producer_ids.first_free(known)
