"""``kbroker-creation``: which creation of its topic a partition's directory belongs to.

In a cluster without topic ids, a topic that is deleted and created again has the same name and
nothing else to tell it by, except the node in the store: its creation id. The id here has two
parts, that of the store (of ``/cluster/id``) and that of the topic's node: ids of different stores
say nothing about each other.
"""

from __future__ import annotations

import os
from contextlib import suppress

from kbroker.storage.files import read_if_present, replace_file
from kbroker.storage.formats import CREATION_NOTE

# Not known: neither equal to another one nor different from it.
NO_CREATION = b""
_PART_BYTES = 8
_HEAD = "version: 0\ncreation: "


class CorruptNoteError(ValueError):
    """A note with invalid content."""


def creation_of(store_id: int, node_id: int) -> bytes:
    """The creation id of a topic whose node has this id, in the store with that one."""
    return b"".join(part.to_bytes(_PART_BYTES, "big", signed=True) for part in (store_id, node_id))


def is_same_store(one: bytes, other: bytes) -> bool:
    """Whether both are known, and from the same store."""
    return bool(one) and bool(other) and one[:_PART_BYTES] == other[:_PART_BYTES]


def is_other_creation(one: bytes, other: bytes) -> bool:
    """Whether these are of two topics of the same store."""
    return is_same_store(one, other) and one != other


def read_creation(directory: str) -> bytes:
    """The creation id; NO_CREATION if there is no note. Raises CorruptNoteError, OSError."""
    path = os.path.join(directory, CREATION_NOTE)
    data = read_if_present(path)
    if data is None:
        return NO_CREATION
    try:
        text = data.decode("ascii")
        creation = bytes.fromhex(text.removeprefix(_HEAD))
    except ValueError as error:
        raise CorruptNoteError(f"{path}: {error}") from error
    if not text.startswith(_HEAD) or len(creation) != 2 * _PART_BYTES:
        raise CorruptNoteError(f"{path}: not a version 0 note with a creation")
    return creation


def write_creation(directory: str, creation: bytes) -> None:
    """Not synced: a note that a power failure has torn counts as none. Raises OSError."""
    path = os.path.join(directory, CREATION_NOTE)
    replace_file(path, f"{_HEAD}{creation.hex()}\n".encode(), sync=False)


def remove_creation(directory: str) -> None:
    """Make it a directory of a broker whose topics have ids. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, CREATION_NOTE))
