"""``partition.metadata``: which topic id a partition's directory belongs to."""

from __future__ import annotations

import base64
import binascii
import os

from kbroker.storage.files import read_if_present, replace_file
from kbroker.storage.formats import PARTITION_METADATA


class CorruptMetadataError(ValueError):
    """A metadata file that does not say what it should."""


def format_topic_id(topic_id: bytes) -> str:
    """16 bytes as Kafka writes them: base64url without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def parse_topic_id(text: str) -> bytes:
    """Raises CorruptMetadataError."""
    try:
        topic_id = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptMetadataError(f"{text!r} is no topic id") from error
    if len(topic_id) != 16:
        raise CorruptMetadataError(f"{text!r} is no topic id")
    return topic_id


def read_partition_metadata(directory: str) -> bytes | None:
    """The topic id, None when there is no file (brokers before 2.8 wrote none). Raises
    CorruptMetadataError.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    data = read_if_present(path)
    if data is None:
        return None
    fields = _fields(data, path)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise CorruptMetadataError(f"{path}: not a version 0 file with a topic_id")
    return parse_topic_id(fields["topic_id"])


def names_another_topic(directory: str, topic_id: bytes) -> bool:
    """Whether a partition's directory says that it is of another topic id. Raises nothing: a file
    that cannot be read says nothing.
    """
    try:
        return read_partition_metadata(directory) not in (None, topic_id)
    except (CorruptMetadataError, OSError):
        return False


def write_partition_metadata(directory: str, topic_id: bytes, *, sync: bool = False) -> None:
    text = f"version: 0\ntopic_id: {format_topic_id(topic_id)}"
    replace_file(os.path.join(directory, PARTITION_METADATA), text.encode(), sync=sync)


def _fields(data: bytes, path: str) -> dict[str, str]:
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptMetadataError(f"{path}: {error}") from error
    fields = {}
    for line in lines:
        if not line.strip():
            continue
        key, found, value = line.partition(":")
        if not found:
            raise CorruptMetadataError(f"{path}: {line!r} is no field")
        fields[key.strip()] = value.strip()
    return fields
