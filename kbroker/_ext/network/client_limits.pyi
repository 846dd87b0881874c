from collections.abc import Callable, Iterable
from typing import Any

from kbroker._ext.network.connection import Connection
from kbroker._ext.shared.quota_table import QuotaTable
from kbroker._ext.sockets.client_usage import ClientUsage

class ClientLimits:
    on: bool
    find: Callable[[Any, bytes], ClientUsage] | None
    @property
    def table(self) -> QuotaTable: ...
    @property
    def throttled(self) -> int: ...
    def quota_of_time(self, c: Connection) -> tuple[int, float]: ...
    def charge_handler(self, c: Connection, spent_ns: int, now_ms: int) -> None: ...
    def forget(self, connections: Iterable[Connection]) -> None: ...
