from collections.abc import Callable

from kbroker.record.compression import Buffer

def register(
    decompress: Callable[[int, Buffer, int], bytes],
    compress: Callable[[int, Buffer, int | None], bytes],
    lz4_decode_block: Callable[[], int],
) -> None: ...
