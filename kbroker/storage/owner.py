"""Ownership of the files that a command writes into a data directory.

Root runs commands, too, as a rule with the broker under an account of its own. That account could
neither open a metadata store that is root's, nor append to a log that root has rewritten.
"""

from __future__ import annotations

import os
from contextlib import suppress

ROOT = 0


def give_to_owner(path: str) -> None:
    """Give a file written by root to the owner of its directory.

    Without effect for others than root, and where a file system keeps root from it. Raises OSError.
    """
    if os.geteuid() != ROOT:
        return
    directory, file = os.stat(os.path.dirname(path)), os.stat(path)
    if (directory.st_uid, directory.st_gid) != (file.st_uid, file.st_gid):
        with suppress(PermissionError):  # a file system without owners, or an NFS export
            os.chown(path, directory.st_uid, directory.st_gid)
