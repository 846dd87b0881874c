"""Data directories owned by an account other than root, for commands run by root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ACCOUNT = (12345, 12346)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def hand_over(directory: Path) -> None:
    """Give the account ownership of all of it."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, *ACCOUNT)


def not_handed_over(directory: Path) -> Iterator[str]:
    """Files that the account must not own."""
    for path in (directory, *directory.rglob("*")):
        info = path.stat()
        if (info.st_uid, info.st_gid) != ACCOUNT:
            yield str(path)
