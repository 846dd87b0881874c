ENTRY_BYTES: int

class OffsetMap:
    capacity: int
    limit: int
    count: int
    latest_offset: int
    def __init__(self, bytes_max: int, load_factor: float, keys_max: int = ...) -> None: ...
    def put_key(self, key: bytes, offset: int) -> bool: ...
    def get_key(self, key: bytes) -> int: ...
