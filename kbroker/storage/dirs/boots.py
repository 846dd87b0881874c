"""Whether the machine was restarted since a log directory was last in use.

A killed process loses nothing that it wrote: the page cache outlives it. A machine that loses power
loses what was not synced, up to the last seconds of every log. ``kbroker-boot-id`` holds the boot
id of the last start, and tells the two apart. After a power failure every partition in the
directory is suspect; ``kbroker-suspect-partitions`` names them until it is known that they have
what their other replicas have (``replication.tail_repair``), over as many starts as that takes.
"""

from __future__ import annotations

import logging
import os

from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint
from kbroker.storage.dirs.log_dir import scan_partitions
from kbroker.storage.files import read_if_present, replace_file
from kbroker.storage.formats import BOOT_ID_NAME, SUSPECT_PARTITIONS
from kbroker.types import FIRST_OFFSET

logger = logging.getLogger(__name__)

BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


def current_boot_id() -> bytes:
    """The id of this boot of the machine; empty if the system does not tell."""
    try:
        return (read_if_present(BOOT_ID_PATH) or b"").strip()
    except OSError as error:
        logger.warning("cannot read %s: %s", BOOT_ID_PATH, error)
        return b""


def has_suspects(directory: str) -> bool:
    """Whether some partition of a log directory may have lost records. Raises nothing."""
    try:
        return bool(OffsetCheckpoint(directory, SUSPECT_PARTITIONS).read())
    except (OSError, CorruptCheckpointError):
        return True


def note_start(directory: str, *, was_clean: bool) -> bool:
    """Write this boot's id into a log directory; True if its logs may have lost their tails.

    was_clean: it was closed in order, or there is nothing in it. What is suspect is on disk before
    the boot id is: a failure in between is found again.
    """
    boot_id = current_boot_id()
    path = os.path.join(directory, BOOT_ID_NAME)
    try:
        known = (read_if_present(path) or b"").strip()
        is_suspect = not was_clean and (not boot_id or known != boot_id)
        if is_suspect:
            suspects = dict.fromkeys(scan_partitions(directory), FIRST_OFFSET)
            OffsetCheckpoint(directory, SUSPECT_PARTITIONS).merge(suspects)
        if boot_id and known != boot_id:
            replace_file(path, boot_id + b"\n")
    except OSError as error:
        logger.error("cannot note the boot id in %s: %s", directory, error)
        return not was_clean
    return is_suspect
