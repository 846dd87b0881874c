"""What network processes tell an owner about followers, as bytes."""

from __future__ import annotations

import struct

from kbroker._ext.shared import lane_layout

ENTRY = struct.Struct(lane_layout.FOLLOWER_FORMAT)
ATTACHED, PROGRESS, LEFT = lane_layout.ATTACHED, lane_layout.PROGRESS, lane_layout.LEFT


def entry(
    replica: int,
    offset: int = -1,
    *,
    seen: int = -1,
    at_ms: int = 0,
    leader_epoch: int = 1,
    cell: int = -1,
    flags: int | None = None,
    slot: int = 0,
    incarnation: int = 1,
    log_start: int = 0,
    place: tuple[int, int] = (-1, -1),
    segment_version: int = 0,
) -> bytes:
    """A ``FollowerProgress``; with an offset it is the progress of a fetch."""
    if flags is None:
        flags = PROGRESS
    return ENTRY.pack(
        slot, incarnation, replica, leader_epoch, offset, log_start, seen, *place, at_ms,
        segment_version, cell, flags, 0,
    )  # fmt: skip
