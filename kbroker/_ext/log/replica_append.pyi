from _typeshed import ReadableBuffer

from kbroker._ext.log.log_append import LogAppender
from kbroker.types import Offset

ALL: int
CLOSED: int
NO_ROOM: int
BAD_LENGTH: int
BAD_MAGIC: int
BAD_CRC: int
BAD_COUNT: int
OFFSET_BACK: int
EPOCH_BACK: int
EPOCH_AHEAD: int

def append_replica(
    log: LogAppender, data: ReadableBuffer, leader_epoch: int, now_ms: int
) -> tuple[int, int, int, Offset, int, int, int]: ...
