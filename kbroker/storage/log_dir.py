"""What lies in a log directory: partitions, and directories that wait to be deleted.

Locks, ``meta.properties`` and the clean-shutdown marker are the supervisor's
(``supervisor/data_dirs.py``).
"""

from __future__ import annotations

import os

from kbroker.storage.formats import DELETE_DIR_SUFFIX, parse_partition_dir


def scan_partitions(directory: str) -> list[tuple[str, int]]:
    """(topic, partition) of every partition directory, not those that wait for deletion. Raises
    OSError.
    """
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_partition_dir(entry.name)
            if parsed is not None and entry.is_dir(follow_symlinks=False):
                found.append(parsed)
    return sorted(found)


def scan_deleted(directory: str) -> list[str]:
    """Paths of partition directories that wait for deletion. Raises OSError."""
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries if entry.name.endswith(DELETE_DIR_SUFFIX)]
