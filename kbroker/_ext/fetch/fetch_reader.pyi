from collections.abc import Callable, Sequence

from kbroker._ext.shared.replication_quota import ReplicationQuota
from kbroker.types import BrokerId

class PartitionReader:
    quota: ReplicationQuota | None
    # replicas, listener index, id of the most caught up -> the replica to read from, -1: this one
    select: Callable[[Sequence[BrokerId], int, int], int] | None
    @property
    def redirected_total(self) -> int: ...
