"""Record batches: checking, reading, building and compressing them.

Importing the package registers the codecs with the extensions that read and write batches. They
are loaded with the first batch that needs them, unless ``kbroker.record.compression`` is imported
before, as a broker does.
"""

from kbroker._ext.record import codecs


def _decompress(codec: int, data: bytes | bytearray | memoryview, limit: int) -> bytes:
    from kbroker.record import compression  # which registers itself instead

    return compression.decompress(codec, data, limit)


def _compress(codec: int, data: bytes | bytearray | memoryview, level: int | None) -> bytes:
    from kbroker.record import compression

    return compression.compress(codec, data, level)


def _lz4_decode_block() -> int:
    from kbroker.record import compression

    return compression.lz4_decode_block()


codecs.register(_decompress, _compress, _lz4_decode_block)
