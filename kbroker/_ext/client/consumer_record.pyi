from collections.abc import Iterable
from typing import Any

class ConsumerRecord:
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    leader_epoch: int
    serialized_key_size: int
    serialized_value_size: int
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        value: Any = ...,
        key: Any = ...,
        headers: Iterable[tuple[str, bytes | None]] = ...,
        *,
        timestamp: int = ...,
        timestamp_type: int = ...,
        leader_epoch: int = ...,
        serialized_key_size: int = ...,
        serialized_value_size: int = ...,
    ) -> None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...
