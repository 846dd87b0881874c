"""Writes a plan into a new metadata store: all of it, or nothing.

The store is created elsewhere and moved into the data directory with one rename, so a crash leaves
the directory either as it was or adopted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from kbroker.adopt.errors import Refusal
from kbroker.adopt.plan import AdoptionPlan, TopicPlan
from kbroker.metastore import paths
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.store import StoreError, StoreFailed, StoreTransaction
from kbroker.metastore.store_files import COPY_NAME, FILE_NAME, WAL_NAME, places_of_store
from kbroker.storage.files import free_space, sync_directory
from kbroker.storage.owner import give_to_owner
from kbroker.wording import counted

ADOPTED = "/kbroker-adopted"
# Topics in one transaction; progress is reported between two of them.
_TOPICS_AT_ONCE = 200

Progress = Callable[[str], None]


def store_place(log_dirs: Sequence[str]) -> str | None:
    """The data directory with kbroker's metadata store; None if there is none.

    Raises Refusal when several have one.
    """
    having = places_of_store(log_dirs)
    if len(having) > 1:
        raise Refusal(
            f"{having[1]}/{FILE_NAME}: {having[0]} has one as well; keep the one of this broker "
            "and move the other away"
        )
    return having[0] if having else None


@contextmanager
def store_to_read(directory: str) -> Iterator[NodeFile]:
    """The store in a data directory, as a copy: opening one writes. Raises Refusal, OSError."""
    import shutil  # with bz2 and lzma, which a start that looks at no store does not need
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kbroker-adopt-") as elsewhere:
        for name in (FILE_NAME, WAL_NAME, COPY_NAME):
            path = os.path.join(directory, name)
            if os.path.exists(path):
                shutil.copyfile(path, os.path.join(elsewhere, name))
        try:
            store = NodeFile(elsewhere)
        except StoreFailed as error:
            raise Refusal(str(error).replace(elsewhere, directory)) from error
        try:
            yield store
        finally:
            store.close()


def is_unused(place: str) -> bool:
    """Whether the store there is empty, because a start was interrupted. Raises Refusal,
    OSError.
    """
    with store_to_read(place) as store:
        return store.exists(paths.CLUSTER_ID) is None


def register(plan: AdoptionPlan, place: str, progress: Progress = lambda _text: None) -> str:
    """Write the store into a data directory; its path. Raises Refusal, OSError."""
    import shutil
    import tempfile

    target = os.path.join(place, FILE_NAME)
    made = target + ".adopting"
    with tempfile.TemporaryDirectory(prefix="kbroker-adopt-") as elsewhere:
        try:
            store = NodeFile(elsewhere)
            try:
                _fill(store, plan, progress)
            finally:
                store.close()
        except (StoreFailed, StoreError) as error:
            raise Refusal(f"cannot write the metadata: {error}") from error
        try:
            shutil.copyfile(os.path.join(elsewhere, FILE_NAME), made)
            os.chmod(made, 0o600)
            give_to_owner(made)
            fd = os.open(made, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            for name in (WAL_NAME, COPY_NAME):  # of one that held nothing
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(place, name))
            os.rename(made, target)
        except OSError as error:
            with suppress(OSError):  # it may not be there yet
                os.unlink(made)
            raise Refusal(
                f"{target}: {os.strerror(error.errno or 0).lower()} ({free_space(place)})"
            ) from error
    sync_directory(place)
    return target


def _fill(store: NodeFile, plan: AdoptionPlan, progress: Progress) -> None:
    transaction = store.multi()
    for path in paths.PERSISTENT_PATHS:
        if path != paths.PRODUCER_ID_BLOCK:
            transaction.create(path)
    transaction.create(paths.CLUSTER_ID, paths.encode_cluster_id(plan.identity.cluster_id))
    block = paths.encode_producer_id_block(
        plan.identity.broker_id, max(0, plan.next_producer_id - 1000), plan.next_producer_id - 1
    )
    transaction.create(paths.PRODUCER_ID_BLOCK, block if plan.next_producer_id else b"")
    for entity, config in plan.broker_configs.items():
        transaction.create(paths.broker_config(entity), paths.encode_config(config))
    for group, config in plan.group_configs.items():
        transaction.create(paths.group_config(group), paths.encode_config(config))
    # With KRaft's levels: the finalized features of the cluster.
    transaction.create(paths.KAFKAS_FEATURES, paths.encode_kafkas_features(plan.features))
    origin = {"version": 1, "metadata_end_offset": plan.metadata_end_offset}
    transaction.create(paths.GONE_TOPICS)
    for name, topic_ids in plan.left_alone.items():
        transaction.create(paths.gone_topic(name), paths.encode_gone_topic(topic_ids))
    transaction.create(ADOPTED, json.dumps(origin).encode())
    transaction.commit()
    for at in range(0, len(plan.topics), _TOPICS_AT_ONCE):
        transaction = store.multi()
        for topic in plan.topics[at : at + _TOPICS_AT_ONCE]:
            _add_topic(transaction, topic, plan.identity.broker_id)
        transaction.commit()
        done = min(at + _TOPICS_AT_ONCE, len(plan.topics))
        progress(f"registered {done:,} of {counted(len(plan.topics), 'topic')}")


def _add_topic(transaction: StoreTransaction[list[str]], topic: TopicPlan, broker_id: int) -> None:
    replicas = [broker_id]
    assignment = dict.fromkeys(range(topic.partition_count), replicas)
    transaction.create(paths.topic_config(topic.name), paths.encode_config(topic.config))
    transaction.create(paths.topic(topic.name), paths.encode_topic(topic.topic_id, assignment))
    transaction.create(paths.topic_partitions(topic.name))
    for number in assignment:
        epoch = topic.leader_epochs.get(number, 0)
        state = paths.encode_partition_state(broker_id, epoch, replicas, 0)
        transaction.create(paths.partition(topic.name, number))
        transaction.create(paths.partition_state(topic.name, number), state)


def read_features(store: NodeFile) -> dict[str, int]:
    """The finalized features of the cluster that was adopted."""
    if store.exists(paths.KAFKAS_FEATURES) is None:
        return {}
    document = json.loads(store.get(paths.KAFKAS_FEATURES).data or b"{}")
    return {
        name: int(levels["max_version_level"])
        for name, levels in document.get("features", {}).items()
    }


def adopted_metadata_offset(store: NodeFile) -> int | None:
    """The end of the metadata log when it was adopted; None if there was none."""
    if store.exists(ADOPTED) is None:
        return None
    offset = json.loads(store.get(ADOPTED).data)["metadata_end_offset"]
    return None if offset is None else int(offset)
