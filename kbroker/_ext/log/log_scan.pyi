from collections.abc import Callable

from kbroker._ext.log.offset_index import OffsetIndex, TimeIndex
from kbroker._ext.log.producer_state import ProducerState
from kbroker.types import Offset

END: int
ZEROS: int
DAMAGED: int
PROGRESS_BYTES: int

class Scan:
    end_position: int
    next_offset: Offset
    max_timestamp: int
    max_timestamp_offset: Offset
    first_timestamp: int
    bytes_since_index: int
    batch_count: int
    stop: int
    problem: str | None
    last_position: int
    out_of_order: bool
    leader_epochs: list[tuple[int, Offset]]
    forgets_epochs: bool
    aborted: list[tuple[int, Offset, Offset, Offset]]

class IndexCheck:
    gap_count: int
    first_gap: int
    grouped_count: int
    offset_problem_count: int
    time_problem_count: int
    offset_problems: list[str]
    time_problems: list[str]
    def __init__(
        self, offsets: OffsetIndex | None = None, times: TimeIndex | None = None
    ) -> None: ...
    def finish(self, whole: bool) -> None: ...

def scan_segment(
    fd: int,
    base_offset: int,
    end: int,
    *,
    position: int = 0,
    next_offset: int | None = None,
    verify: bool = True,
    contiguous: bool = False,
    offset_index: OffsetIndex | None = None,
    time_index: TimeIndex | None = None,
    index_interval_bytes: int = 4096,
    producers: ProducerState | None = None,
    progress: Callable[[], None] | None = None,
    check: IndexCheck | None = None,
    offset_limit: int = ...,
) -> Scan: ...

class FoundBatch:
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def base_offset(self) -> Offset: ...
    @property
    def last_offset(self) -> Offset: ...
    @property
    def max_timestamp(self) -> int: ...

def find_batch(
    fd: int, position: int, end: int, *, offset: int = -1, timestamp: int = -1
) -> FoundBatch | None: ...
