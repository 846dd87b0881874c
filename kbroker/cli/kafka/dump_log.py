"""``kafka-dump-log``: what is in the files of a partition. Nothing is changed."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from kbroker.cli.kafka.dump_records import Decoder, decoder, dump_batches
from kbroker.cli.kafka.options import Given, flag, valued
from kbroker.cli.kafka.running import Tool, ToolFailed

_INT_MAX = (1 << 31) - 1
_STRINGS = "org.apache.kafka.tools.api.StringDecoder"
_DECODERS = (
    "offsets-decoder", "transaction-log-decoder", "value-decoder-class", "key-decoder-class",
)  # fmt: skip
_NOT_HERE = (
    "cluster-metadata-decoder", "remote-log-metadata-decoder", "share-group-state-decoder",
)  # fmt: skip

OPTIONS = (
    valued("files", "file1, file2, ...", "The files, with commas between them; required."),
    flag("print-data-log", "Print keys and values."),
    flag("deep-iteration", "Print records, not only batches."),
    flag("verify-index-only", "Compare indexes with their logs, without printing them."),
    flag("index-sanity-check", "Check indexes as a broker that starts does."),
    valued("max-message-size", "size", "The largest batch.", kind=int, default=str(5 << 20)),
    valued("max-bytes", "size", "Read so many bytes of a log.", kind=int, default=str(_INT_MAX)),
    valued("value-decoder-class", "", "The class that reads values.", default=_STRINGS,
           optional=True),
    valued("key-decoder-class", "", "The class that reads keys.", default=_STRINGS, optional=True),
    flag("offsets-decoder", "Print the records of __consumer_offsets as JSON."),
    flag("transaction-log-decoder", "Print the records of __transaction_state as JSON."),
    flag("cluster-metadata-decoder", "Refused: there is no such log without KRaft."),
    flag("remote-log-metadata-decoder", "Refused: there is no tiered storage."),
    flag("share-group-state-decoder", "Refused: there are no share groups."),
    flag("skip-record-metadata", "Print keys and values of records without their metadata."),
)  # fmt: skip


class DumpLogChoices(NamedTuple):
    """bytes_max: of each log. records: every record. decoder: what prints keys and values, None if
    they are not printed. metadata: of records. sane: only check indexes. quiet: only compare them.
    batch_max: bytes of a batch that an index may name.
    """

    bytes_max: int
    records: bool
    decoder: Decoder | None
    metadata: bool
    sane: bool
    quiet: bool
    batch_max: int


def _run(given: Given) -> int:
    given.require("files")
    for name in _NOT_HERE:
        if name in given:
            raise ToolFailed(f"--{name}: kbroker writes no such records")
    shown = "print-data-log" in given or bool(given.count(_DECODERS))
    options = DumpLogChoices(
        bytes_max=given.one("max-bytes"),
        records=shown or "deep-iteration" in given,
        decoder=_decoder(given) if shown else None,
        metadata="skip-record-metadata" not in given,
        sane="index-sanity-check" in given,
        quiet="verify-index-only" in given,
        batch_max=given.one("max-message-size"),
    )
    complaints: list[str] = []
    for path in given.one("files").split(","):
        print(f"Dumping {path}")
        try:
            complaints += _dump(path, options)
        except OSError as error:
            raise ToolFailed(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise ToolFailed(f"{path}: {error}") from error
    sys.stdout.flush()
    for line in complaints:
        print(line, file=sys.stderr)
    return 0


def _decoder(given: Given) -> Decoder:
    if "offsets-decoder" in given:
        return decoder("offsets")
    if "transaction-log-decoder" in given:
        return decoder("transactions")
    try:
        return decoder(given.one("key-decoder-class"), given.one("value-decoder-class"))
    except KeyError as error:
        raise ToolFailed(f"there is no decoder {error.args[0]} here") from None


def _dump(path: str, options: DumpLogChoices) -> list[str]:
    """What is wrong, in lines. Raises OSError, ValueError."""
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1]
    if suffix == ".log":
        print(f"Log starting offset: {_base_offset(name)}")
        return dump_batches(path, options.bytes_max, options.records, options.decoder,
                            options.metadata)  # fmt: skip
    dumper = _DUMPERS.get(suffix)
    if dumper is None:
        return [f"Ignoring unknown file {path}"]
    return dumper(path, options)


def _base_offset(name: str) -> int:
    text = name.partition(".")[0]
    if not text.isdecimal():
        raise ToolFailed(f"{name}: the name of a segment's file begins with its base offset")
    return int(text)


def _log_of(path: str) -> str:
    return os.path.join(os.path.dirname(path), f"{os.path.basename(path).partition('.')[0]}.log")


# -- indexes


def _dump_index(path: str, options: DumpLogChoices) -> list[str]:
    from kbroker._ext.log.offset_index import LOOK_ONLY, OffsetIndex
    from kbroker.cli.kafka.dump_records import LogFile

    base = _base_offset(os.path.basename(path))
    with LogFile(_log_of(path)) as log:
        index = OffsetIndex(path, base, LOOK_ONLY)
        if not index.entry_count:
            print(f"{path} is empty.")
            return []
        if options.sane:
            index.verify(_INT_MAX)
            print(f"{path} passed sanity check.")
            return []
        wrong = []
        for at in range(index.entry_count):
            offset, position = index.entry(at)
            if offset == base and at:  # what is left of a preallocated file
                break
            batch = log.batch_at(position)
            if batch is None or batch.size > options.batch_max:
                size = f" of at most {options.batch_max} bytes" if batch is not None else ""
                raise ValueError(f"{_log_of(path)} has no batch{size} at position {position}")
            if batch.last_offset != offset:
                wrong.append(f"  Index offset: {offset}, log offset: {batch.last_offset}")
            if not options.quiet:
                print(f"offset: {offset} position: {position}")
    return [f"Mismatches in :{os.path.abspath(path)}", *wrong] if wrong else []


def _dump_time_index(path: str, options: DumpLogChoices) -> list[str]:
    from kbroker._ext.log.offset_index import LOOK_ONLY, OffsetIndex, TimeIndex
    from kbroker.cli.kafka.dump_records import LogFile
    from kbroker.storage.formats import LARGEST

    base = _base_offset(os.path.basename(path))
    mismatched, disordered, missing = [], [], []
    with LogFile(_log_of(path)) as log:
        offsets = OffsetIndex(f"{path.removesuffix('.timeindex')}.index", base, LOOK_ONLY)
        index = TimeIndex(path, base, LOOK_ONLY)
        if options.sane:
            index.verify(LARGEST)
            print(f"{path} passed sanity check.")
            return []
        before = -1
        for at in range(index.entry_count):
            timestamp, offset = index.entry(at)
            if offset == base and at:
                break
            batch = log.first_from(offsets.lookup(offset)[1], offset)
            in_log = -1 if batch is None else batch.last_offset
            if batch is None or in_log != offset:
                missing.append(f"Indexed offset: {offset}, found log offset: {in_log}")
            else:
                latest = max(batch.timestamps(), default=-1)
                if latest != timestamp:
                    mismatched.append(f"  Index timestamp: {timestamp}, log timestamp: {latest}")
                if before >= timestamp:
                    disordered.append(
                        f"  Index timestamp: {timestamp}, Previously indexed timestamp: {before}"
                    )
            if not options.quiet:
                print(f"timestamp: {timestamp} offset: {offset}")
            before = timestamp
    where = os.path.abspath(path)
    return [
        *([f"Found timestamp mismatch in :{where}", *mismatched] if mismatched else []),
        *([f"Found out of order timestamp in :{where}", *disordered] if disordered else []),
        *(["The following indexed offsets are not found in the log.", *missing] if missing else []),
    ]


def _dump_txn_index(path: str, options: DumpLogChoices) -> list[str]:
    from kbroker.storage.segments.txn_index import raw_entries

    with open(path, "rb") as file:
        data = file.read()
    for version, entry in raw_entries(data):
        print(
            f"version: {version} producerId: {entry.producer_id} firstOffset: "
            f"{entry.first_offset} lastOffset: {entry.last_offset} lastStableOffset: "
            f"{entry.last_stable_offset}"
        )
    return []


def _dump_snapshot(path: str, options: DumpLogChoices) -> list[str]:
    from kbroker._ext.log.producer_state import CorruptSnapshotError, ProducerState

    with open(path, "rb") as file:
        data = file.read()
    try:
        entries = ProducerState.from_snapshot(data, _base_offset(os.path.basename(path))).entries
    except CorruptSnapshotError as error:
        return [str(error)]
    for entry in entries.values():
        first = entry.current_txn_first_offset
        line = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: "
            f"{'OptionalLong.empty' if first < 0 else f'OptionalLong[{first}]'} "
            f"lastTimestamp: {entry.last_timestamp}"
        )
        for first_seq, last_seq, first_offset, last_offset, time in entry.recent_batches[:1]:
            line += (
                f" firstSequence: {first_seq} lastSequence: {last_seq} lastOffset: {last_offset} "
                f"offsetDelta: {last_offset - first_offset} timestamp: {time}"
            )
        print(line)
    return []


_DUMPERS = {
    ".index": _dump_index,
    ".timeindex": _dump_time_index,
    ".txnindex": _dump_txn_index,
    ".snapshot": _dump_snapshot,
}
TOOL = Tool(
    "This tool helps to parse a log file and dump its contents to the console, useful for "
    "debugging a seemingly corrupt log segment.",
    OPTIONS,
    _run,
)
