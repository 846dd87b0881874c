"""What the C compiler made of the rows of the shared tables. Written by tools/gen_docs.py from kbroker/ipc/layouts.py."""
from libc.stddef cimport size_t


def offsets() -> dict:
    """Of each row: (its size, {field: (offset, size)})."""
    return {
        "LogEnd": of_0(),
        "SlotData": of_1(),
        "SlotFollowers": of_2(),
        "TableHeader": of_3(),
        "Slot": of_4(),
        "SlotName": of_5(),
        "Written": of_6(),
        "Read": of_7(),
        "ClientRow": of_8(),
        "ProcessHead": of_9(),
        "ProcessRow": of_10(),
    }


cdef tuple of_0():
    cdef LogEnd row
    return sizeof(LogEnd), {
        "offset": (<size_t>&row.offset - <size_t>&row, sizeof(row.offset)),
        "segment_base_offset": (<size_t>&row.segment_base_offset - <size_t>&row, sizeof(row.segment_base_offset)),
        "position": (<size_t>&row.position - <size_t>&row, sizeof(row.position)),
    }


cdef tuple of_1():
    cdef SlotData row
    return sizeof(SlotData), {
        "state": (<size_t>&row.state - <size_t>&row, sizeof(row.state)),
        "slot_incarnation": (<size_t>&row.slot_incarnation - <size_t>&row, sizeof(row.slot_incarnation)),
        "segment_version": (<size_t>&row.segment_version - <size_t>&row, sizeof(row.segment_version)),
        "leader_epoch": (<size_t>&row.leader_epoch - <size_t>&row, sizeof(row.leader_epoch)),
        "log_dir_index": (<size_t>&row.log_dir_index - <size_t>&row, sizeof(row.log_dir_index)),
        "flags": (<size_t>&row.flags - <size_t>&row, sizeof(row.flags)),
        "log_start_offset": (<size_t>&row.log_start_offset - <size_t>&row, sizeof(row.log_start_offset)),
        "log_end": (<size_t>&row.log_end - <size_t>&row, sizeof(row.log_end)),
        "high_watermark": (<size_t>&row.high_watermark - <size_t>&row, sizeof(row.high_watermark)),
        "last_stable": (<size_t>&row.last_stable - <size_t>&row, sizeof(row.last_stable)),
        "aborted_version": (<size_t>&row.aborted_version - <size_t>&row, sizeof(row.aborted_version)),
        "role": (<size_t>&row.role - <size_t>&row, sizeof(row.role)),
        "partition_epoch": (<size_t>&row.partition_epoch - <size_t>&row, sizeof(row.partition_epoch)),
        "latest_epoch": (<size_t>&row.latest_epoch - <size_t>&row, sizeof(row.latest_epoch)),
        "latest_epoch_start": (<size_t>&row.latest_epoch_start - <size_t>&row, sizeof(row.latest_epoch_start)),
        "previous_epoch": (<size_t>&row.previous_epoch - <size_t>&row, sizeof(row.previous_epoch)),
        "unused": (<size_t>&row.unused - <size_t>&row, sizeof(row.unused)),
        "checked_segment": (<size_t>&row.checked_segment - <size_t>&row, sizeof(row.checked_segment)),
        "checked_position": (<size_t>&row.checked_position - <size_t>&row, sizeof(row.checked_position)),
    }


cdef tuple of_2():
    cdef SlotFollowers row
    return sizeof(SlotFollowers), {
        "log_start_max": (<size_t>&row.log_start_max - <size_t>&row, sizeof(row.log_start_max)),
        "most_caught_up": (<size_t>&row.most_caught_up - <size_t>&row, sizeof(row.most_caught_up)),
    }


cdef tuple of_3():
    cdef TableHeader row
    return sizeof(TableHeader), {
        "offline_changes": (<size_t>&row.offline_changes - <size_t>&row, sizeof(row.offline_changes)),
        "unused": (<size_t>&row.unused - <size_t>&row, sizeof(row.unused)),
    }


cdef tuple of_4():
    cdef Slot row
    return sizeof(Slot), {
        "sequence": (<size_t>&row.sequence - <size_t>&row, sizeof(row.sequence)),
        "unused": (<size_t>&row.unused - <size_t>&row, sizeof(row.unused)),
        "committed_waiters": (<size_t>&row.committed_waiters - <size_t>&row, sizeof(row.committed_waiters)),
        "written_waiters": (<size_t>&row.written_waiters - <size_t>&row, sizeof(row.written_waiters)),
        "data": (<size_t>&row.data - <size_t>&row, sizeof(row.data)),
        "followers": (<size_t>&row.followers - <size_t>&row, sizeof(row.followers)),
    }


cdef tuple of_5():
    cdef SlotName row
    return sizeof(SlotName), {
        "sequence": (<size_t>&row.sequence - <size_t>&row, sizeof(row.sequence)),
        "slot_incarnation": (<size_t>&row.slot_incarnation - <size_t>&row, sizeof(row.slot_incarnation)),
        "partition": (<size_t>&row.partition - <size_t>&row, sizeof(row.partition)),
        "topic_size": (<size_t>&row.topic_size - <size_t>&row, sizeof(row.topic_size)),
        "topic": (<size_t>&row.topic - <size_t>&row, sizeof(row.topic)),
        "unused": (<size_t>&row.unused - <size_t>&row, sizeof(row.unused)),
    }


cdef tuple of_6():
    cdef Written row
    return sizeof(Written), {
        "incarnation": (<size_t>&row.incarnation - <size_t>&row, sizeof(row.incarnation)),
        "segments": (<size_t>&row.segments - <size_t>&row, sizeof(row.segments)),
        "messages_in": (<size_t>&row.messages_in - <size_t>&row, sizeof(row.messages_in)),
        "bytes_in": (<size_t>&row.bytes_in - <size_t>&row, sizeof(row.bytes_in)),
        "produces": (<size_t>&row.produces - <size_t>&row, sizeof(row.produces)),
        "failed_produces": (<size_t>&row.failed_produces - <size_t>&row, sizeof(row.failed_produces)),
        "bytes_rejected": (<size_t>&row.bytes_rejected - <size_t>&row, sizeof(row.bytes_rejected)),
        "sealed_bytes": (<size_t>&row.sealed_bytes - <size_t>&row, sizeof(row.sealed_bytes)),
        "segment_version": (<size_t>&row.segment_version - <size_t>&row, sizeof(row.segment_version)),
        "behind": (<size_t>&row.behind - <size_t>&row, sizeof(row.behind)),
    }


cdef tuple of_7():
    cdef Read row
    return sizeof(Read), {
        "incarnation": (<size_t>&row.incarnation - <size_t>&row, sizeof(row.incarnation)),
        "unused": (<size_t>&row.unused - <size_t>&row, sizeof(row.unused)),
        "bytes_out": (<size_t>&row.bytes_out - <size_t>&row, sizeof(row.bytes_out)),
        "bytes_to_followers": (<size_t>&row.bytes_to_followers - <size_t>&row, sizeof(row.bytes_to_followers)),
        "fetches": (<size_t>&row.fetches - <size_t>&row, sizeof(row.fetches)),
        "failed_fetches": (<size_t>&row.failed_fetches - <size_t>&row, sizeof(row.failed_fetches)),
        "more": (<size_t>&row.more - <size_t>&row, sizeof(row.more)),
    }


cdef tuple of_8():
    cdef ClientRow row
    return sizeof(ClientRow), {
        "version": (<size_t>&row.version - <size_t>&row, sizeof(row.version)),
        "unused": (<size_t>&row.unused - <size_t>&row, sizeof(row.unused)),
        "connections": (<size_t>&row.connections - <size_t>&row, sizeof(row.connections)),
        "requests": (<size_t>&row.requests - <size_t>&row, sizeof(row.requests)),
        "bytes_in": (<size_t>&row.bytes_in - <size_t>&row, sizeof(row.bytes_in)),
        "bytes_out": (<size_t>&row.bytes_out - <size_t>&row, sizeof(row.bytes_out)),
        "listener": (<size_t>&row.listener - <size_t>&row, sizeof(row.listener)),
        "client_id_size": (<size_t>&row.client_id_size - <size_t>&row, sizeof(row.client_id_size)),
        "name_size": (<size_t>&row.name_size - <size_t>&row, sizeof(row.name_size)),
        "version_size": (<size_t>&row.version_size - <size_t>&row, sizeof(row.version_size)),
        "unused_too": (<size_t>&row.unused_too - <size_t>&row, sizeof(row.unused_too)),
        "client_id": (<size_t>&row.client_id - <size_t>&row, sizeof(row.client_id)),
        "name": (<size_t>&row.name - <size_t>&row, sizeof(row.name)),
        "software_version": (<size_t>&row.software_version - <size_t>&row, sizeof(row.software_version)),
        "more": (<size_t>&row.more - <size_t>&row, sizeof(row.more)),
    }


cdef tuple of_9():
    cdef ProcessHead row
    return sizeof(ProcessHead), {
        "magic": (<size_t>&row.magic - <size_t>&row, sizeof(row.magic)),
        "layout": (<size_t>&row.layout - <size_t>&row, sizeof(row.layout)),
        "pid_namespace": (<size_t>&row.pid_namespace - <size_t>&row, sizeof(row.pid_namespace)),
        "status_bytes": (<size_t>&row.status_bytes - <size_t>&row, sizeof(row.status_bytes)),
        "rows": (<size_t>&row.rows - <size_t>&row, sizeof(row.rows)),
        "counter_cells": (<size_t>&row.counter_cells - <size_t>&row, sizeof(row.counter_cells)),
        "unused": (<size_t>&row.unused - <size_t>&row, sizeof(row.unused)),
    }


cdef tuple of_10():
    cdef ProcessRow row
    return sizeof(ProcessRow), {
        "pid": (<size_t>&row.pid - <size_t>&row, sizeof(row.pid)),
        "incarnation": (<size_t>&row.incarnation - <size_t>&row, sizeof(row.incarnation)),
        "state": (<size_t>&row.state - <size_t>&row, sizeof(row.state)),
        "heartbeat_ns": (<size_t>&row.heartbeat_ns - <size_t>&row, sizeof(row.heartbeat_ns)),
        "connections": (<size_t>&row.connections - <size_t>&row, sizeof(row.connections)),
        "handed_over": (<size_t>&row.handed_over - <size_t>&row, sizeof(row.handed_over)),
        "unused": (<size_t>&row.unused - <size_t>&row, sizeof(row.unused)),
    }
