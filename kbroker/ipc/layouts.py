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


class LayoutField(NamedTuple):
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
    fields: tuple[LayoutField, ...]


LOG_END = Row(
    "LogEnd",
    "A place in the log.",
    (
        LayoutField("offset", "int64_t", "exclusive end"),
        LayoutField("segment_base_offset", "int64_t"),
        LayoutField("position", "int64_t", "in the file of the segment"),
    ),
)
SLOT_DATA = Row(
    "SlotData",
    "What the sequence lock of a slot guards.",
    (
        LayoutField("state", "uint32_t", "SlotState"),
        LayoutField("slot_incarnation", "uint32_t", "changes when another replica gets the slot"),
        LayoutField("segment_version", "uint32_t", "changes when the list of segment files does"),
        LayoutField("leader_epoch", "int32_t", "as of the role"),
        LayoutField("log_dir_index", "int32_t"),
        LayoutField("flags", "uint32_t", "SlotFlag"),
        LayoutField("log_start_offset", "int64_t"),
        LayoutField("log_end", "LogEnd"),
        LayoutField("high_watermark", "LogEnd"),
        LayoutField("last_stable", "LogEnd"),
        LayoutField(
            "aborted_version",
            "uint32_t",
            "changes when a .txnindex gets an entry; 0: no transaction was ever aborted here",
        ),
        LayoutField("role", "uint32_t", "SlotRole"),
        LayoutField(
            "partition_epoch", "int32_t", "version of leader, leader epoch and ISR in metadata"
        ),
        LayoutField("latest_epoch", "int32_t", "of the log; -1: there is none"),
        LayoutField("latest_epoch_start", "int64_t", "its first offset"),
        LayoutField("previous_epoch", "int32_t", "-1: there is none"),
        LayoutField("unused", "uint32_t"),
        LayoutField(
            "checked_segment",
            "int64_t",
            "base offset; the owner has not checked the batches before this place since its "
            "start: readers check them before sending",
        ),
        LayoutField("checked_position", "int64_t"),
    ),
)
SLOT_FOLLOWERS = Row(
    "SlotFollowers",
    "The followers in sync with a leader, for consumers that may read from them (KIP-392). Kept "
    "only with replica.selector.class; outside of the sequence lock, as each field stands for "
    "itself.",
    (
        LayoutField(
            "log_start_max", "int64_t", "of their log start offsets; INT64_MAX: one is unknown"
        ),
        LayoutField("most_caught_up", "int64_t", "broker id; -1: none"),
    ),
)
TABLE_HEADER = Row(
    "TableHeader",
    "In front of the slots.",
    (
        LayoutField(
            "offline_changes", "int64_t", "how often a slot went offline or came back, in all"
        ),
        LayoutField("unused", "int64_t", items=7),
    ),
)
SLOT = Row(
    "Slot",
    "A replica on this broker.",
    (
        LayoutField("sequence", "uint32_t", "odd while a write is in progress"),
        LayoutField("unused", "uint32_t"),
        # The bits are set by readers and taken by the owner, outside of the sequence lock.
        LayoutField(
            "committed_waiters",
            "uint64_t",
            "bit i: network process i wants a WAKE when the slot advances; see Waiters",
        ),
        LayoutField("written_waiters", "uint64_t"),
        LayoutField("data", "SlotData"),
        LayoutField("followers", "SlotFollowers"),
    ),
)
SLOT_NAME = Row(
    "SlotName",
    "The partition whose replica has a slot.",
    (
        LayoutField("sequence", "uint32_t", "odd while a write is in progress; 0: never used"),
        LayoutField("slot_incarnation", "uint32_t", "0: the slot is free"),
        LayoutField("partition", "int32_t"),
        LayoutField("topic_size", "uint8_t"),
        LayoutField("topic", "uint8_t", items="TOPIC_NAME_BYTES"),
        LayoutField("unused", "uint8_t", items=2),
    ),
)
WRITTEN = Row(
    "Written",
    "What a replica got, by slot. Written by the io worker that owns the slot.",
    (
        LayoutField("incarnation", "uint32_t", "of the slot, as of the numbers"),
        LayoutField("segments", "uint32_t", "of the log now"),
        LayoutField("messages_in", "int64_t"),
        LayoutField("bytes_in", "int64_t"),
        LayoutField("produces", "int64_t"),
        LayoutField("failed_produces", "int64_t"),
        LayoutField("bytes_rejected", "int64_t"),
        LayoutField("sealed_bytes", "int64_t", "of the log now, without its active segment"),
        LayoutField("segment_version", "uint32_t", "of the slot, when these two were right"),
        LayoutField(
            "behind", "uint32_t", "the leader by one less so many records; 0: it does not copy"
        ),
    ),
)
READ = Row(
    "Read",
    "What was read of a replica, by slot. Written by one network process.",
    (
        LayoutField("incarnation", "uint32_t"),
        LayoutField("unused", "uint32_t"),
        LayoutField("bytes_out", "int64_t", "to consumers"),
        LayoutField("bytes_to_followers", "int64_t"),
        LayoutField("fetches", "int64_t"),
        LayoutField("failed_fetches", "int64_t"),
        LayoutField("more", "int64_t", items=3),
    ),
)
CLIENT_ROW = Row(
    "ClientRow",
    "A client of a network process, the only writer.",
    (
        LayoutField("version", "uint32_t", "odd while the names change; 0: not in use"),
        LayoutField("unused", "uint32_t"),
        LayoutField("connections", "int64_t", "open now"),
        LayoutField("requests", "int64_t"),
        LayoutField("bytes_in", "int64_t"),
        LayoutField("bytes_out", "int64_t"),
        LayoutField("listener", "int16_t"),
        LayoutField("client_id_size", "uint8_t"),
        LayoutField("name_size", "uint8_t"),
        LayoutField("version_size", "uint8_t"),
        LayoutField("unused_too", "uint8_t", items=3),
        LayoutField("client_id", "uint8_t", items="CLIENT_ID_BYTES"),
        LayoutField("name", "uint8_t", items="SOFTWARE_NAME_BYTES"),
        LayoutField("software_version", "uint8_t", items="SOFTWARE_VERSION_BYTES"),
        LayoutField("more", "uint8_t", items=32),
    ),
)
# Those of the process table have no code in the extensions but are checked like all others.
PROCESS_HEAD = Row(
    "ProcessHead",
    "In front of the process table: what makes it the index of a run.",
    (
        LayoutField("magic", "int64_t", "MAGIC"),
        LayoutField("layout", "int64_t", "LAYOUT"),
        LayoutField("pid_namespace", "int64_t", "in which the pids are; 0: unknown"),
        LayoutField("status_bytes", "int64_t", "of the document in the status region"),
        LayoutField("rows", "int64_t"),
        LayoutField("counter_cells", "int64_t", "of a process in the region of counters"),
        LayoutField("unused", "int64_t", items=2),
    ),
)
PROCESS_ROW = Row(
    "ProcessRow",
    "A process of the broker. Written by it, but pid and incarnation by the supervisor.",
    (
        LayoutField("pid", "int64_t"),
        LayoutField("incarnation", "int64_t", "number of its starts"),
        LayoutField("state", "int64_t"),
        LayoutField("heartbeat_ns", "int64_t", "of the monotonic clock"),
        LayoutField("connections", "int64_t"),
        LayoutField("handed_over", "int64_t", "from the controller: controlled shutdown has ended"),
        LayoutField("unused", "int64_t", items=2),
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
