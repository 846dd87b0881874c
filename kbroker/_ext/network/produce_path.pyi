from collections.abc import Callable

from kbroker._ext.shared.arena import Arena
from kbroker._ext.sockets.requests import RequestTable

class ProduceDecodeError(ValueError): ...

class ProducePath:
    # listener index -> LeaderHints; None: no hints
    find_leaders: Callable[[int], object] | None
    @property
    def queued(self) -> int: ...
    @property
    def bytes_in(self) -> int: ...
    # topics: the TopicRegistry of this process
    def __init__(
        self, arena: Arena, topics: object, requests: RequestTable, worker_count: int
    ) -> None: ...
