"""A stopped partition with files of every type, and the command run on it."""

from __future__ import annotations

import io
import json
import struct
import zlib
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from support.storage.log_store import NOW_MS, LogStore, append, batch, end_transaction, sent

from kbroker.cli import log as command

SETTINGS = {"segment.bytes": 3000, "index.interval.bytes": 300}
TRANSACTIONS = 40


def make_partition(path: Path) -> Path:
    """Several segments of partition 0 of topic ``t``, cleanly closed; returns its directory.

    One transaction is open throughout and aborted at the end, others end in between, every second
    with an abort; one is left open.
    """
    store = LogStore(path)
    log = store.open(**SETTINGS)
    append(log, sent(5, 0, 2, epoch=3))
    for number in range(TRANSACTIONS):
        append(log, sent(6, number, epoch=1, codec=number % 5, size=50))
        end_transaction(log, 6, commit=number % 2 == 0, epoch=1, coordinator_epoch=4)
        append(log, batch(timestamp=NOW_MS + number, key=None if number % 3 else b"key"))
    end_transaction(log, 5, commit=False, epoch=3, coordinator_epoch=9)
    append(log, sent(7, 0))
    assert len(log.segments) > 3
    store.stop(clean=True)
    return store.path()


def run(*arguments: str | Path) -> tuple[int, str]:
    """(exit code, output) of ``kbroker-log``."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = command.main([str(argument) for argument in arguments])
    return code, printed.getvalue()


def run_json(*arguments: str | Path) -> tuple[int, list[dict[str, Any]]]:
    code, text = run(*arguments, "--json")
    return code, [json.loads(line) for line in text.splitlines()]


def damaged_files(path: Path) -> set[str]:
    """Names of the files that ``verify`` reports as damaged."""
    code, lines = run_json("verify", path)
    found = {Path(line["file"]).name for line in lines if line["level"] == "damage"}
    assert code == (1 if found else 0)
    return found


def flip(path: Path, at: int, bits: int = 0x41) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def legacy_message(
    magic: int, offset: int, value: bytes, *, codec: int = 0, timestamp: int = NOW_MS
) -> bytes:
    """One message of format 0 or 1, without a key."""
    body = struct.pack(">bb", magic, codec)
    if magic:
        body += struct.pack(">q", timestamp)
    body += struct.pack(">ii", -1, len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(message)) + message
