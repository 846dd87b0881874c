from typing import TypedDict

from kbroker.types import Offset

LAYOUT_VERSION: int
HEADER_SIZE: int
FREE: int
ONLINE: int
OFFLINE: int
LOADING: int
CLOSED: int
NO_ROLE: int
LEADER: int
FOLLOWER: int
REPAIRING: int
STATE_NAMES: dict[int, str]

# offset, segment base offset, position
End = tuple[Offset, Offset, int]

class Slot(TypedDict):
    state: int
    slot_incarnation: int
    segment_version: int
    leader_epoch: int
    log_dir_index: int
    log_start_offset: Offset
    log_end: End
    high_watermark: End
    last_stable: End
    aborted_version: int
    checked_from: tuple[Offset, int]
    gapless: bool
    role: int
    partition_epoch: int
    # -1: there is none
    latest_epoch: int
    latest_epoch_start: int
    previous_epoch: int

class PartitionTable:
    @property
    def capacity(self) -> int: ...
    @property
    def writes(self) -> int: ...
    @property
    def offline_changes(self) -> int: ...
    def __init__(self, region: object, capacity: int) -> None: ...
    def read(self, slot: int) -> Slot | None: ...
    def role(self, slot: int, slot_incarnation: int) -> int | None: ...
    def readable_end(self, slot: int, slot_incarnation: int) -> tuple[Offset, bool] | None: ...
    def reset(
        self,
        slot: int,
        *,
        state: int,
        role: int = 0,
        slot_incarnation: int = 0,
        leader_epoch: int = 0,
        partition_epoch: int = 0,
        log_dir_index: int = 0,
    ) -> None: ...
    def set_epochs(
        self, slot: int, latest_epoch: int, latest_epoch_start: int, previous_epoch: int
    ) -> None: ...
    def set_role(self, slot: int, role: int, leader_epoch: int, partition_epoch: int) -> None: ...
    def set_state(self, slot: int, state: int) -> None: ...
    def set_swapping(self, slot: int, swapping: bool) -> None: ...
    def set_log_dir(self, slot: int, log_dir_index: int) -> None: ...
    def set_checked_from(
        self, slot: int, segment_base_offset: int, position: int, gapless: bool
    ) -> None: ...
    def take_segments_changed(self) -> set[int]: ...
    def count_by_log_dir(self, count: int) -> list[int]: ...
    def publish(
        self,
        slot: int,
        *,
        log_start_offset: int,
        log_end: End,
        high_watermark: End | None = None,
        last_stable: End | None = None,
        leader_epoch: int | None = None,
        segments_changed: bool = False,
    ) -> None: ...
    def set_followers(self, slot: int, log_start_max: int, most_caught_up: int) -> None: ...
    def followers(self, slot: int) -> tuple[int, int]: ...
    def wait(self, slot: int, network_index: int, *, written: bool = False) -> None: ...
    def waiters(self, slot: int) -> int: ...

def region_size(capacity: int) -> int: ...
