"""Logs whose oldest records are in remote storage (KIP-405), which kbroker does not read.

``log-start-offset-checkpoint`` says where a log begins. Segments between that offset and the first
file were moved to remote storage, or were not copied.
"""

from __future__ import annotations

from kbroker.adopt.directories import LogDirectory
from kbroker.adopt.errors import Refusal
from kbroker.adopt.logs import COPY_AGAIN, FoundLog
from kbroker.adopt.metadata_image import MetadataImage
from kbroker.adopt.metadata_records import TOPIC_RESOURCE
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.formats import LOG_START_CHECKPOINT

SETTING = "remote.storage.enable"
_OPTION = "use --without-remote-records to take over the local records only"


class LogStarts:
    """Checks one log after the other. ``notes``: about what is left behind."""

    def __init__(self, metadata: MetadataImage | None, *, leave_behind: bool) -> None:
        self._settings_known = metadata is not None
        self._tiered = {
            name
            for (kind, name), config in (metadata.configs.items() if metadata is not None else ())
            if kind == TOPIC_RESOURCE and config.get(SETTING, "").strip().lower() == "true"
        }
        self._leave_behind = leave_behind
        self.notes: list[str] = []

    def check(self, key: TopicPartition, directory: LogDirectory, log: FoundLog) -> None:
        """Raises Refusal when records before the log's first file are missing."""
        topic, number = key
        is_tiered = topic in self._tiered
        # Kafka writes that line for every log with remote storage, for others only if it is needed.
        start = directory.log_starts.get(key, 0 if is_tiered else log.start_offset)
        if start >= log.start_offset:
            return
        missing = f"offsets {start} to {log.start_offset - 1}"
        if self._leave_behind and (is_tiered or not self._settings_known):
            self.notes.append(
                f"Topic {topic}: {missing} of partition {number} are in remote storage and are "
                "left behind."
            )
        elif is_tiered:
            raise Refusal(
                f"{log.path}: {missing} of topic {topic} are in remote storage ({SETTING}=true), "
                "which kbroker does not read. Mirror the topic instead, or disable its remote "
                f"storage in Kafka, or {_OPTION}"
            )
        elif directory.is_clean:
            remote = f". If they are in remote storage, {_OPTION}"
            raise Refusal(
                f"{log.path}: {missing} are missing: {LOG_START_CHECKPOINT} says that the log "
                f"begins there, but its first file begins later; {COPY_AGAIN}, or remove its line "
                f"from that file{'' if self._settings_known else remote}"
            )
