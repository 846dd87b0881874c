"""The error for damage that recovery may not repair."""

from __future__ import annotations

from kbroker.types import Offset


class DamagedLogError(ValueError):
    """Records that were synced can no longer be read. No log file was changed.

    It costs the partition, and never its log directory. readable_to: everything below that offset
    is still there; None if that is not known.
    """

    def __init__(self, text: str, readable_to: Offset | None = None) -> None:
        super().__init__(text)
        self.readable_to = readable_to
