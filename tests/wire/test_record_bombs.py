"""Half a gigabyte in a few bytes must cost no more than the budget, in each codec.

Each bomb goes off in a process of its own, because peak memory is a figure of the whole process.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.wire

BUDGET = 4 << 20
# The budget twice (the codec's window and the result) and the rounding of an allocator.
RSS_GROWTH_MAX = 2 * BUDGET + (8 << 20)

CHILD = """
import resource, sys, time, zlib
import lz4.frame, snappy, zstandard
from kbroker.record import compression
from kbroker.batch_errors import DecompressedTooLargeError

MEBIBYTE, SIZE, BUDGET = bytes(1 << 20), 512, int(sys.argv[2])

def streamed(encoder, begin=b""):
    parts = [begin] + [encoder.compress(MEBIBYTE) for _ in range(SIZE)]
    return b"".join(parts) + encoder.flush()

def zstd_declared():
    encoder = zstandard.ZstdCompressor(level=1).compressobj(size=SIZE << 20)
    return compression.ZSTD, streamed(encoder)

def zstd_undeclared():
    params = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    encoder = zstandard.ZstdCompressor(compression_params=params).compressobj()
    return compression.ZSTD, streamed(encoder)

def zstd_frames():
    frame = zstandard.ZstdCompressor(level=1).compress(MEBIBYTE)
    return compression.ZSTD, frame * SIZE

def gzip_member():
    return compression.GZIP, streamed(zlib.compressobj(1, wbits=31))

def gzip_members():
    encoder = zlib.compressobj(9, wbits=31)
    return compression.GZIP, (encoder.compress(MEBIBYTE) + encoder.flush()) * SIZE

def lz4_frame():
    encoder = lz4.frame.LZ4FrameCompressor(block_linked=False, block_size=7)
    return compression.LZ4, streamed(encoder, encoder.begin())

def snappy_raw():
    # A first literal byte, then copies of 64 bytes: 3 bytes each.
    size = SIZE << 20
    length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128,
                    size >> 21 & 127 | 128, size >> 28])
    return compression.SNAPPY, length + bytes([0, 0]) + bytes([0xFE, 1, 0]) * 5000

def snappy_xerial():
    block = snappy.compress(MEBIBYTE)
    block = len(block).to_bytes(4, "big") + block
    return compression.SNAPPY, b"\\x82SNAPPY\\0\\0\\0\\0\\1\\0\\0\\0\\1" + block * 64

codec, bomb = globals()[sys.argv[1]]()
for warm in range(5):  # imports are not the bomb's doing
    compression.decompress(warm, compression.compress(warm, b"warm"), BUDGET)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
try:
    compression.decompress(codec, bomb, BUDGET)
except DecompressedTooLargeError:
    verdict = "too-large"
else:
    verdict = "accepted"
seconds = time.process_time() - start
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(verdict, grown, seconds, len(bomb))
"""


@pytest.mark.parametrize(
    "bomb",
    [
        "zstd_declared",
        "zstd_undeclared",
        "zstd_frames",
        "gzip_member",
        "gzip_members",
        "lz4_frame",
        "snappy_raw",
        "snappy_xerial",
    ],
)
def test_bomb_is_rejected_within_budget(bomb):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, bomb, str(BUDGET)],
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr
    verdict, grown, seconds, _ = done.stdout.split()
    assert verdict == "too-large"
    assert int(grown) <= RSS_GROWTH_MAX
    assert float(seconds) <= 2.5
