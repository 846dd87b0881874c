"""The rows of the shared tables that other programs read: one description of each.

``tools/gen_docs.py`` makes the structs of the extensions of it (``shared/layouts.pxd``), and
``cli.local.dtypes`` makes numpy's. So a reader cannot differ from a writer, as long as both are of
one ``LAYOUT``, which is part of a region's head.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

# Sizes of arrays in rows.
CONSTANTS = {
    "CLIENT_ID_BYTES": 96,
    "SOFTWARE_NAME_BYTES": 48,
    "SOFTWARE_VERSION_BYTES": 32,
    "TOPIC_NAME_BYTES": 249,
}


class Field(NamedTuple):
    """type: of C, or the name of another row. items: a number, or one of CONSTANTS; 1: no array."""

    name: str
    type: str
    comment: str = ""
    items: int | str = 1

    @property
    def length(self) -> int:
        return CONSTANTS[self.items] if isinstance(self.items, str) else self.items


class Row(NamedTuple):
    """Fields are in the order of the memory, each aligned to its size."""

    name: str
    comment: str
    fields: tuple[Field, ...]


LOG_END = Row(
    "LogEnd",
    "A place in the log.",
    (
        Field("offset", "int64_t", "exclusive end"),
        Field("segment_base_offset", "int64_t"),
        Field("position", "int64_t", "in the file of the segment"),
    ),
)
SLOT_DATA = Row(
    "SlotData",
    "What the sequence lock of a slot guards.",
    (
        Field("state", "uint32_t", "SlotState"),
        Field("slot_incarnation", "uint32_t", "changes when another replica gets the slot"),
        Field("segment_version", "uint32_t", "changes when the list of segment files does"),
        Field("leader_epoch", "int32_t", "as of the role"),
        Field("log_dir_index", "int32_t"),
        Field("flags", "uint32_t", "SlotFlag"),
        Field("log_start_offset", "int64_t"),
        Field("log_end", "LogEnd"),
        Field("high_watermark", "LogEnd"),
        Field("last_stable", "LogEnd"),
        Field(
            "aborted_version",
            "uint32_t",
            "changes when a .txnindex gets an entry; 0: no transaction was ever aborted here",
        ),
        Field("role", "uint32_t", "SlotRole"),
        Field("partition_epoch", "int32_t", "version of leader, leader epoch and ISR in metadata"),
        Field("latest_epoch", "int32_t", "of the log; -1: there is none"),
        Field("latest_epoch_start", "int64_t", "its first offset"),
        Field("previous_epoch", "int32_t", "-1: there is none"),
        Field("unused", "uint32_t"),
        Field(
            "checked_segment",
            "int64_t",
            "base offset; the owner has not checked the batches before this place since its "
            "start: readers check them before sending",
        ),
        Field("checked_position", "int64_t"),
    ),
)
SLOT_FOLLOWERS = Row(
    "SlotFollowers",
    "The followers in sync with a leader, for consumers that may read from them (KIP-392). Kept "
    "only with replica.selector.class; outside of the sequence lock, as each field stands for "
    "itself.",
    (
        Field("log_start_max", "int64_t", "of their log start offsets; INT64_MAX: one is unknown"),
        Field("most_caught_up", "int64_t", "broker id; -1: none"),
    ),
)
TABLE_HEADER = Row(
    "TableHeader",
    "In front of the slots.",
    (
        Field("offline_changes", "int64_t", "how often a slot went offline or came back, in all"),
        Field("unused", "int64_t", items=7),
    ),
)
SLOT = Row(
    "Slot",
    "A replica on this broker.",
    (
        Field("sequence", "uint32_t", "odd while a write is in progress"),
        Field("unused", "uint32_t"),
        # The bits are set by readers and taken by the owner, outside of the sequence lock.
        Field(
            "committed_waiters",
            "uint64_t",
            "bit i: network process i wants a WAKE when the slot advances; see Waiters",
        ),
        Field("written_waiters", "uint64_t"),
        Field("data", "SlotData"),
        Field("followers", "SlotFollowers"),
    ),
)
SLOT_NAME = Row(
    "SlotName",
    "The partition whose replica has a slot.",
    (
        Field("sequence", "uint32_t", "odd while a write is in progress; 0: never used"),
        Field("slot_incarnation", "uint32_t", "0: the slot is free"),
        Field("partition", "int32_t"),
        Field("topic_size", "uint8_t"),
        Field("topic", "uint8_t", items="TOPIC_NAME_BYTES"),
        Field("unused", "uint8_t", items=2),
    ),
)
WRITTEN = Row(
    "Written",
    "What a replica got, by slot. Written by the io worker that owns the slot.",
    (
        Field("incarnation", "uint32_t", "of the slot, as of the numbers"),
        Field("segments", "uint32_t", "of the log now"),
        Field("messages_in", "int64_t"),
        Field("bytes_in", "int64_t"),
        Field("produces", "int64_t"),
        Field("failed_produces", "int64_t"),
        Field("bytes_rejected", "int64_t"),
        Field("sealed_bytes", "int64_t", "of the log now, without its active segment"),
        Field("segment_version", "uint32_t", "of the slot, when these two were right"),
        Field("behind", "uint32_t", "the leader by one less so many records; 0: it does not copy"),
    ),
)
READ = Row(
    "Read",
    "What was read of a replica, by slot. Written by one network process.",
    (
        Field("incarnation", "uint32_t"),
        Field("unused", "uint32_t"),
        Field("bytes_out", "int64_t", "to consumers"),
        Field("bytes_to_followers", "int64_t"),
        Field("fetches", "int64_t"),
        Field("failed_fetches", "int64_t"),
        Field("more", "int64_t", items=3),
    ),
)
CLIENT_ROW = Row(
    "ClientRow",
    "A client of a network process, the only writer.",
    (
        Field("version", "uint32_t", "odd while the names change; 0: not in use"),
        Field("unused", "uint32_t"),
        Field("connections", "int64_t", "open now"),
        Field("requests", "int64_t"),
        Field("bytes_in", "int64_t"),
        Field("bytes_out", "int64_t"),
        Field("listener", "int16_t"),
        Field("client_id_size", "uint8_t"),
        Field("name_size", "uint8_t"),
        Field("version_size", "uint8_t"),
        Field("unused_too", "uint8_t", items=3),
        Field("client_id", "uint8_t", items="CLIENT_ID_BYTES"),
        Field("name", "uint8_t", items="SOFTWARE_NAME_BYTES"),
        Field("software_version", "uint8_t", items="SOFTWARE_VERSION_BYTES"),
        Field("more", "uint8_t", items=32),
    ),
)
# Those of the process table have no code in the extensions but are checked like all others.
PROCESS_HEAD = Row(
    "ProcessHead",
    "In front of the process table: what makes it the index of a run.",
    (
        Field("magic", "int64_t", "MAGIC"),
        Field("layout", "int64_t", "LAYOUT"),
        Field("pid_namespace", "int64_t", "in which the pids are; 0: unknown"),
        Field("status_bytes", "int64_t", "of the document in the status region"),
        Field("rows", "int64_t"),
        Field("counter_cells", "int64_t", "of a process in the region of counters"),
        Field("unused", "int64_t", items=2),
    ),
)
PROCESS_ROW = Row(
    "ProcessRow",
    "A process of the broker. Written by it, but pid and incarnation by the supervisor.",
    (
        Field("pid", "int64_t"),
        Field("incarnation", "int64_t", "number of its starts"),
        Field("state", "int64_t"),
        Field("heartbeat_ns", "int64_t", "of the monotonic clock"),
        Field("connections", "int64_t"),
        Field("handed_over", "int64_t", "from the controller: controlled shutdown has ended"),
        Field("unused", "int64_t", items=2),
    ),
)

# A row comes after those in it.
ROWS = (
    LOG_END, SLOT_DATA, SLOT_FOLLOWERS, TABLE_HEADER, SLOT, SLOT_NAME, WRITTEN, READ, CLIENT_ROW,
    PROCESS_HEAD, PROCESS_ROW,
)  # fmt: skip
BY_NAME = {row.name: row for row in ROWS}

MAGIC = int.from_bytes(b"kbroker\0", "little")
# Differs when any row does.
LAYOUT = crc32(
    repr([(row.name, [(f.name, f.type, f.length) for f in row.fields]) for row in ROWS]).encode()
)
