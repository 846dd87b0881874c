from kbroker.types import Offset

def latest_records(
    data: bytes, position: int, keep: int
) -> tuple[int, int, int, dict[bytes, list[tuple[Offset, bytes | None]]]]: ...
