"""``partition.metadata``: the topic id of a partition's directory."""

from __future__ import annotations

import os
from contextlib import suppress

from kbroker.storage.files import read_if_present, replace_file
from kbroker.storage.formats import PARTITION_METADATA
from kbroker.uuids import parse_uuid, uuid_text


class CorruptMetadataError(ValueError):
    """A partition.metadata file with invalid content."""


def read_partition_metadata(directory: str) -> bytes | None:
    """The topic id, None if there is no file (brokers before 2.8 wrote none). Raises
    CorruptMetadataError.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    data = read_if_present(path)
    if data is None:
        return None
    fields = _fields(data, path)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise CorruptMetadataError(f"{path}: not a version 0 file with a topic_id")
    try:
        return parse_uuid(fields["topic_id"])
    except ValueError as error:
        raise CorruptMetadataError(f"{path}: topic_id {error}") from error


def names_another_topic(directory: str, topic_id: bytes) -> bool:
    """Whether a partition's directory has another topic id. Raises nothing: an unreadable file
    counts as no.
    """
    try:
        return read_partition_metadata(directory) not in (None, topic_id)
    except (CorruptMetadataError, OSError):
        return False


def is_torn_metadata(directory: str, topic_id: bytes) -> bool:
    """Whether the file is what a power failure may leave of one with that id: a prefix of it, with
    zeros instead of the rest. A flipped bit does not look like that. Raises OSError.
    """
    data = read_if_present(os.path.join(directory, PARTITION_METADATA)) or b""
    return _text(topic_id).startswith(data.rstrip(b"\0"))


def write_partition_metadata(directory: str, topic_id: bytes, *, sync: bool = False) -> None:
    replace_file(os.path.join(directory, PARTITION_METADATA), _text(topic_id), sync=sync)


def remove_partition_metadata(directory: str) -> None:
    """Make it a directory of brokers that know no topic ids. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, PARTITION_METADATA))


def _text(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def _fields(data: bytes, path: str) -> dict[str, str]:
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptMetadataError(f"{path}: {error}") from error
    fields = {}
    for line in lines:
        if not line.strip():
            continue
        key, colon, value = line.partition(":")
        if not colon:
            raise CorruptMetadataError(f"{path}: {line!r} is not a field")
        fields[key.strip()] = value.strip()
    return fields
