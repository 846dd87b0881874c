"""To which topic a partition's directory belongs: more than its name can say.

A topic that is deleted and created again has the same name. So a directory has a note of its
topic: ``partition.metadata`` with the topic id, or in a cluster without topic ids, where Kafka 2.7
would refuse that file, ``kbroker-creation``. A directory without a note, of an older kbroker or of
Kafka, gets one, unless its partition is new: then no log can be its own.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple, Protocol

from kbroker.descriptors import opening
from kbroker.storage.damage import DamagedLogError
from kbroker.storage.dirs.creation_note import (
    NO_CREATION,
    CorruptNoteError,
    is_other_creation,
    is_same_store,
    read_creation,
    remove_creation,
    write_creation,
)
from kbroker.storage.dirs.partition_metadata import (
    CorruptMetadataError,
    is_torn_metadata,
    names_another_topic,
    read_partition_metadata,
    remove_partition_metadata,
    write_partition_metadata,
)
from kbroker.storage.formats import CREATION_NOTE, LOG_SUFFIX, PARTITION_METADATA
from kbroker.uuids import uuid_text

logger = logging.getLogger(__name__)

# What an operator can do if the topic id of a partition's directory is wrong.
WAY_OUT = (
    f"If the records belong to this topic, remove {PARTITION_METADATA} and restart; it will be "
    "rewritten. If not, move the directory away, and the partition begins empty"
)


class DirOwner(NamedTuple):
    """A topic as directories know it. creation: NO_CREATION where it has an id, and while the store
    cannot be asked.
    """

    topic_id: bytes
    creation: bytes = NO_CREATION


class Ownership(Protocol):
    """The notes of one kind of broker. All of it raises OSError, except ``is_anothers``."""

    def belongs(self, path: str, owner: DirOwner, *, is_new: bool) -> bool:
        """Whether a partition's directory belongs to the topic; adopts one without a note.

        is_new: the partition was never opened. Raises DamagedLogError when the directory of a
        partition that was opened contradicts the metadata.
        """

    def write(self, path: str, owner: DirOwner) -> None:
        """Note the topic of a new directory."""

    def ensure(self, path: str, owner: DirOwner) -> None:
        """Note the topic of a directory that has no note."""

    def learn(self, path: str, owner: DirOwner) -> None:
        """Note the topic of a directory whose log is open: its creation is known only now."""

    def is_anothers(self, path: str, owner: DirOwner) -> bool:
        """Whether the directory is known to belong to another topic of the name. Raises nothing."""


class ByTopicId:
    """For brokers whose topics have ids that later brokers know, too."""

    def belongs(self, path: str, owner: DirOwner, *, is_new: bool) -> bool:
        topic_id = owner.topic_id
        remove_creation(path)
        try:
            metadata = read_partition_metadata(path)
            if metadata is None and is_new and holds_records(path):
                return False  # of brokers before 2.8, which wrote no topic ids
        except CorruptMetadataError as error:
            if not is_torn_metadata(path, topic_id):
                raise DamagedLogError(f"{error}. {WAY_OUT}") from error
            # The file is not synced: after a power failure it may be torn although the records are
            # intact.
            logger.warning("%s; rewriting it", error)
            metadata = None
        if metadata is None:
            write_partition_metadata(path, topic_id)
            return True
        if metadata != topic_id and not is_new:
            raise DamagedLogError(
                f"{path}/{PARTITION_METADATA} has topic id {uuid_text(metadata)}, but the topic "
                f"has {uuid_text(topic_id)}. {WAY_OUT}"
            )
        return metadata == topic_id

    def write(self, path: str, owner: DirOwner) -> None:
        write_partition_metadata(path, owner.topic_id)

    def ensure(self, path: str, owner: DirOwner) -> None:
        if not os.path.exists(os.path.join(path, PARTITION_METADATA)):
            write_partition_metadata(path, owner.topic_id)

    def learn(self, path: str, owner: DirOwner) -> None:
        """There is nothing to learn."""

    def is_anothers(self, path: str, owner: DirOwner) -> bool:
        return names_another_topic(path, owner.topic_id)


class ByCreation:
    """For brokers in a cluster without topic ids."""

    def belongs(self, path: str, owner: DirOwner, *, is_new: bool) -> bool:
        remove_partition_metadata(path)
        creation = self._read(path)
        if is_other_creation(creation, owner.creation):
            return False
        if is_new and not is_same_store(creation, owner.creation) and holds_records(path):
            return False
        if is_new and creation and not owner.creation:
            remove_creation(path)  # there are no records: whatever it said is over
        if owner.creation and creation != owner.creation:
            if creation and not is_new:
                logger.warning(
                    "%s is of a topic in another ZooKeeper, or this one's /cluster/id was created "
                    "again; it is taken for %s's own", path, os.path.basename(path),
                )  # fmt: skip
            write_creation(path, owner.creation)
        return True

    def write(self, path: str, owner: DirOwner) -> None:
        if owner.creation:
            write_creation(path, owner.creation)

    def ensure(self, path: str, owner: DirOwner) -> None:
        if not os.path.exists(os.path.join(path, CREATION_NOTE)):
            self.write(path, owner)

    def learn(self, path: str, owner: DirOwner) -> None:
        if self.is_anothers(path, owner) and holds_records(path):
            logger.error(
                "%s has records of an earlier topic of that name, which was opened while ZooKeeper "
                "could not be asked; the next start sets it aside", path,
            )  # fmt: skip
            return
        self.write(path, owner)

    def is_anothers(self, path: str, owner: DirOwner) -> bool:
        try:
            return is_other_creation(read_creation(path), owner.creation)
        except (CorruptNoteError, OSError):
            return False

    @staticmethod
    def _read(path: str) -> bytes:
        try:
            return read_creation(path)
        except CorruptNoteError as error:
            # Not synced, so a power failure may have torn it although the records are intact.
            logger.warning("%s; rewriting it", error)
            return NO_CREATION


def holds_records(directory: str) -> bool:
    """Whether a partition's directory has a log file that is not empty. Raises OSError."""
    with opening(directory):
        entries = os.scandir(directory)
    with entries:
        return any(
            entry.name.endswith(LOG_SUFFIX) and entry.stat().st_size > 0 for entry in entries
        )
