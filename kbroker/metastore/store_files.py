"""The files of the embedded store: the database, its log of changes, and a copy with a checksum.

SQLite's pages have no checksum, and a damaged frame of its write-ahead log silently ends what the
log holds. So the database counts its changes, the last good state is kept in a second file, and an
opening compares the two (``differences``) and looks at what the log had behind the part that SQLite
took (``lost_changes``). docs/formats/log-directory.md, "The metadata store".
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import closing, suppress

from kbroker.metastore.reserve import PLENTY_BYTES
from kbroker.security.digests import sha256

FILE_NAME = "kbroker-metadata.db"
WAL_NAME = f"{FILE_NAME}-wal"
# A SQLite database with a footer at its end, which SQLite ignores.
COPY_NAME = "kbroker-metadata.copy"
DAMAGED_SUFFIX = ".damaged"
TEMPORARY_SUFFIX = ".tmp"

COLUMNS = "path, parent, data, version, children_version, created_ms, modified_ms, ephemeral"
ALL_ROWS = f"SELECT {COLUMNS} FROM nodes ORDER BY path"

_FOOTER_MAGIC = b"kbroker1"
_DIGEST_BYTES = 32
_FOOTER_BYTES = len(_FOOTER_MAGIC) + _DIGEST_BYTES
# SQLite's file format: bytes 18 and 19 are 2 in WAL mode, 1 else. A database in memory has no WAL.
_VERSIONS_AT, _NO_WAL = 18, b"\x01\x01"
# SQLite's WAL format: a header, then frames of a header and a page; numbers are big-endian.
_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_PAGE_BYTES = 4096  # SQLite's default
_WAL_MAGICS = (0x377F0682, 0x377F0683)

StoredRow = tuple[str, str, bytes, int, int, int, int, int]


class StoreCopy:
    """The last good state: how many changes it has seen, and all rows by path."""

    __slots__ = ("changes", "image", "rows")

    def __init__(self, image: bytes) -> None:
        """Raises sqlite3.Error, TypeError, ValueError for a file that is not a metadata store."""
        self.image = image
        at = _VERSIONS_AT
        db = sqlite3.connect(":memory:")
        try:
            db.deserialize(image[:at] + _NO_WAL + image[at + len(_NO_WAL) :])
            self.changes = count_changes(db)
            self.rows: dict[str, StoredRow] = {row[0]: row for row in db.execute(ALL_ROWS)}
        finally:
            db.close()


def holds_store(directory: str) -> bool:
    """Whether there is a metadata store in a data directory, be it the copy alone."""
    return any(os.path.exists(os.path.join(directory, name)) for name in (FILE_NAME, COPY_NAME))


def places_of_store(directories: Sequence[str]) -> list[str]:
    """The directories that hold a metadata store. A copy counts if its database is gone."""
    having = [path for path in directories if os.path.exists(os.path.join(path, FILE_NAME))]
    return having or [path for path in directories if holds_store(path)]


def count_changes(db: sqlite3.Connection) -> int:
    """The number of row changes in the database. Raises sqlite3.Error, TypeError."""
    (count,) = db.execute("SELECT count FROM changes").fetchone()
    if not isinstance(count, int):
        raise TypeError(f"the count of changes is {count!r}")
    return count


def nodes_of_store(directories: Sequence[str], wanted: Collection[str]) -> dict[str, bytes]:
    """The data of those nodes that are there, without touching the store: for a look at it before
    the start. Empty without a store. Raises OSError, ValueError.
    """
    import shutil  # with all compressions, which no broker needs
    import tempfile

    having = places_of_store(directories)
    if len(having) != 1:
        return {}
    # SQLite would write into the directory, even to read.
    with tempfile.TemporaryDirectory(prefix="kbroker-look-") as place:
        for name in (FILE_NAME, WAL_NAME):
            with suppress(FileNotFoundError):
                shutil.copyfile(os.path.join(having[0], name), os.path.join(place, name))
        try:
            with closing(sqlite3.connect(os.path.join(place, FILE_NAME))) as db:
                marks = ", ".join("?" * len(wanted))
                query = f"SELECT path, data FROM nodes WHERE path IN ({marks})"
                return dict(db.execute(query, list(wanted)).fetchall())
        except sqlite3.Error as error:
            raise ValueError(f"{having[0]}: {error}") from error


# ---- the copy ----


def read_copy(directory: str) -> StoreCopy | None:
    """The copy; None if there is none, or it is incomplete. Raises OSError."""
    try:
        with open(os.path.join(directory, COPY_NAME), "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    image, footer = content[:-_FOOTER_BYTES], content[-_FOOTER_BYTES:]
    if footer != _footer(image):
        return None
    with suppress(sqlite3.Error, TypeError, ValueError):
        return StoreCopy(image)
    return None


def write_copy(directory: str, image: bytes) -> None:
    """Replace the copy, durably. Raises OSError; the previous one is still there then."""
    replace_whole(directory, COPY_NAME, image + _footer(image))


def check_room(directory: str, size: int) -> None:
    """Raises OSError if ``size`` more bytes would leave too little room for important writes."""
    disk = os.statvfs(directory)
    if disk.f_bavail * disk.f_frsize < size + PLENTY_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def remove_copy(directory: str) -> None:
    """Remove the copy of a store that is replaced, so that it cannot be restored. OSError."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, COPY_NAME))


def _footer(image: bytes) -> bytes:
    return _FOOTER_MAGIC + sha256(image)


def replace_whole(directory: str, name: str, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one. Raises OSError."""
    path = os.path.join(directory, name)
    temporary = path + TEMPORARY_SUFFIX
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(directory)


def sync_directory(path: str) -> None:
    """Make a new directory entry durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def set_aside(directory: str, *names: str) -> None:
    """Keep damaged files for inspection, replacing earlier ones."""
    for name in names:
        path = os.path.join(directory, name)
        with suppress(FileNotFoundError):
            os.rename(path, path + DAMAGED_SUFFIX)


# ---- what is wrong ----


def differences(db: sqlite3.Connection, copy: StoreCopy | None) -> str | None:
    """A sign that the database lost something that the copy has; None if there is none.

    Rows not written since the copy was made must be as in the copy. Raises sqlite3.Error,
    TypeError, ValueError for what cannot be read.
    """
    rows: dict[str, StoredRow] = {row[0]: row for row in db.execute(ALL_ROWS)}
    if copy is None:
        return None
    changes = count_changes(db)
    if changes < copy.changes:
        return f"it has seen {changes} changes, but its copy {copy.changes}"
    if changes == copy.changes:
        return None if rows == copy.rows else "it differs from its copy"
    for path, row in rows.items():
        known = copy.rows.get(path, row)
        if known != row and known[3:7] == row[3:7]:
            return f"{path} differs from its copy although no change was made"
    return None


def structure_fault(db: sqlite3.Connection) -> str | None:
    """The damage that SQLite finds in its pages. Raises sqlite3.Error."""
    (fault,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    return None if fault == "ok" else str(fault).partition("\n")[2] or str(fault)


def lost_changes(wal: bytes, taken: int) -> int:
    """The number of changes in a write-ahead log after the first ``taken`` frames.

    SQLite reads frames up to the first invalid one. Frames after it with the same salts were
    written after it.
    """
    page_bytes = int.from_bytes(wal[8:12], "big")
    if not _is_wal_header(wal[:_WAL_HEADER_BYTES]):
        # It was synced before any frame was written.
        page_bytes = _PAGE_BYTES
    frame_bytes = _FRAME_HEADER_BYTES + page_bytes
    frames = [
        wal[at : at + _FRAME_HEADER_BYTES]
        for at in range(_WAL_HEADER_BYTES, len(wal) - frame_bytes + 1, frame_bytes)
    ]
    if not frames:
        return 0
    salts = wal[16:24]
    if not _is_wal_header(wal[:_WAL_HEADER_BYTES]):
        ((salts, _),) = Counter(frame[8:16] for frame in frames).most_common(1)
    return sum(frame[4:8] != bytes(4) and frame[8:16] == salts for frame in frames[taken:])


def _is_wal_header(header: bytes) -> bool:
    if len(header) < _WAL_HEADER_BYTES or int.from_bytes(header[:4], "big") not in _WAL_MAGICS:
        return False
    # SQLite's checksum, over words in the byte order that the last bit of the magic names.
    words = struct.unpack(">6I" if header[3] & 1 else "<6I", header[:24])
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return struct.pack(">2I", first, second) == header[24:32]
