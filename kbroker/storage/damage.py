"""The error for damage that recovery may not repair."""

from __future__ import annotations


class DamagedLogError(ValueError):
    """Records that were synced can no longer be read. No log file was changed.

    It costs the partition, and never its log directory.
    """
