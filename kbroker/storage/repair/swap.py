"""Finishes or undoes what a crash interrupted in a partition's directory: deletion, cleaning, swap.

``.tmp`` and ``.cleaned`` files never took effect and are removed. ``.deleted`` files were being
deleted and are removed. A ``.swap`` file is complete and replaces the segments whose offsets it
covers (docs/formats/log-directory.md, "Leftovers"), unless a cleaning that was to produce several
of them did not finish: then the originals stay.
"""

from __future__ import annotations

import logging
import os

from kbroker._ext.log.log_scan import END, scan_segment
from kbroker.descriptors import open_file
from kbroker.storage.damage import DamagedLogError
from kbroker.storage.files import list_directory, remove_if_present
from kbroker.storage.formats import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    base_offset_of,
    segment_name,
)

logger = logging.getLogger(__name__)


def finish_interrupted_work(directory: str) -> None:
    """Leave only complete segments. Raises OSError, DamagedLogError."""
    names = list_directory(directory)
    cleaned = [
        base
        for name in names
        if name.endswith(CLEANED_SUFFIX) and (base := base_offset_of(name)) is not None
    ]
    _remove(directory, names, CLEANED_SUFFIX, TEMPORARY_SUFFIX)
    swaps = sorted(
        base
        for name in names
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX) and (base := base_offset_of(name)) is not None
    )
    # Originals are removed only when all files of a group are .swap: from then on nothing can be
    # missing, whatever .cleaned files an earlier cleaner left.
    begun = {base_offset_of(name) for name in names if name.endswith(LOG_SUFFIX + DELETED_SUFFIX)}
    unfinished = min(cleaned, default=None)
    for base in swaps:
        if unfinished is not None and base >= unfinished and base not in begun:
            logger.warning(
                "%s: cleaning from offset %d was interrupted; keeping the originals",
                directory,
                base,
            )
            _remove_swap(directory, base)
        else:
            _finish_swap(directory, base, names)
    # Files set aside are kept until their successor is in place; indexes without a log are removed.
    _remove(directory, list_directory(directory), SWAP_SUFFIX, DELETED_SUFFIX)


def _remove(directory: str, names: list[str], *suffixes: str) -> None:
    for name in names:
        if name.endswith(suffixes):
            remove_if_present(os.path.join(directory, name))


def _remove_swap(directory: str, base: int) -> None:
    for suffix in SEGMENT_SUFFIXES:
        remove_if_present(os.path.join(directory, segment_name(base, suffix) + SWAP_SUFFIX))


def _finish_swap(directory: str, base: int, names: list[str]) -> None:
    path = os.path.join(directory, segment_name(base, LOG_SUFFIX) + SWAP_SUFFIX)
    fd = open_file(path)
    try:
        size = os.fstat(fd).st_size
        scan = scan_segment(fd, base, size)
    finally:
        os.close(fd)
    is_original_there = os.path.exists(os.path.join(directory, segment_name(base, LOG_SUFFIX)))
    # A checksum does not cover a batch's offset: a wrong one would affect segments outside the
    # swap. The last segment never is in a swap.
    last = max((b for n in names if n.endswith(LOG_SUFFIX) and (b := base_offset_of(n))), default=0)
    is_too_far = base < last < scan.next_offset
    if scan.stop != END or is_too_far or (is_original_there and size == 0):
        problem = scan.problem or "unexpected offsets or zeros"
        if not is_original_there:
            raise DamagedLogError(
                f"{path}: {problem} at position {scan.end_position}, and no original is left"
            )
        # The swap file was synced before it got its name; while an original is there, it is the
        # better copy.
        logger.error(
            "%s: %s at position %d; keeping the originals", path, problem, scan.end_position
        )
        _remove_swap(directory, base)
        return
    logger.info("%s: finishing a swap up to offset %d", path, scan.next_offset)
    for name in names:
        other = base_offset_of(name)
        if other is None or not base < other < scan.next_offset:
            continue
        if name.endswith(SEGMENT_SUFFIXES):
            remove_if_present(os.path.join(directory, name))
    for suffix in SEGMENT_SUFFIXES:
        final = os.path.join(directory, segment_name(base, suffix))
        if os.path.exists(final + SWAP_SUFFIX):
            os.rename(final + SWAP_SUFFIX, final)
        elif suffix != LOG_SUFFIX and is_original_there:
            remove_if_present(final)  # it describes the file that is replaced
