from collections.abc import Callable, Sequence

from kbroker._ext.shared.log_figures import LogFigures
from kbroker._ext.shared.replication_quota import ReplicationQuota
from kbroker._ext.shared.request_times import RequestTimes
from kbroker.types import BrokerId

class PartitionReader:
    quota: ReplicationQuota | None
    figures: LogFigures | None
    times: RequestTimes | None
    # replicas, listener index, id of the most caught up -> the replica to read from, -1: this one
    select: Callable[[Sequence[BrokerId], int, int], int] | None
    @property
    def bytes_out(self) -> int: ...
    @property
    def reads(self) -> int: ...
    @property
    def failed_reads(self) -> int: ...
    @property
    def redirected_total(self) -> int: ...
