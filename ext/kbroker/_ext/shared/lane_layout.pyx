"""The structs of descriptors.pxd for ``struct.Struct``, and the numbers of messages, for Python at either end of a lane.

A format is built from the struct's own fields, so that it cannot differ from it.
"""
from libc.stdint cimport uint64_t

from kbroker._ext.shared.descriptors cimport (
    EXPRESS_BIT,
    FOLLOWER_ATTACHED,
    FOLLOWER_LEFT,
    FOLLOWER_PROGRESS,
    LANE_MESSAGE_BYTES,
    MSG_RESPONSE,
    MSG_CALL,
    MSG_FOLLOWER,
    MSG_REPLY,
    MSG_REQUEST,
    RESULT_APPENDED,
    ResponseHead,
    Envelope,
    FollowerProgress,
    RequestHead,
)

# Size in bytes -> its format character in `struct`, unsigned; lower case is signed.
cdef dict LETTERS = {1: "B", 2: "H", 4: "I", 8: "Q"}


cdef str letter(size_t size, bint is_signed):
    cdef str found = LETTERS[size]
    return found.lower() if is_signed else found


cdef str envelope_format():
    cdef Envelope e
    return "=" + letter(sizeof(e.kind), False) + letter(sizeof(e.sender_kind), False) + \
        letter(sizeof(e.sender_index), False) + letter(sizeof(e.sender_incarnation), False) + \
        letter(sizeof(e.target_incarnation), False) + letter(sizeof(e.count), False)


cdef str request_format():
    cdef RequestHead r
    return "=" + letter(sizeof(r.token), False) + letter(sizeof(r.total), False) + letter(sizeof(r.offset), False) + \
        letter(sizeof(r.slot), True) + letter(sizeof(r.slot_incarnation), False) + letter(sizeof(r.api_key), True) + \
        letter(sizeof(r.version), True) + letter(sizeof(r.client_id_size), False) + \
        letter(sizeof(r.host_size), False) + letter(sizeof(r.principal_size), False) + \
        letter(sizeof(r.quota_key), False) + "d"


cdef str response_format():
    cdef ResponseHead a
    return "=" + letter(sizeof(a.token), False) + letter(sizeof(a.total), False) + letter(sizeof(a.offset), False) + \
        letter(sizeof(a.error), True) + letter(sizeof(a.unused), False)


cdef str follower_format():
    cdef FollowerProgress p
    return "=" + letter(sizeof(p.slot), True) + letter(sizeof(p.slot_incarnation), False) + \
        letter(sizeof(p.replica_id), True) + letter(sizeof(p.leader_epoch), True) + \
        letter(sizeof(p.fetch_offset), True) + letter(sizeof(p.log_start_offset), True) + \
        letter(sizeof(p.log_end_seen), True) + letter(sizeof(p.segment_base_offset), True) + \
        letter(sizeof(p.segment_position), True) + letter(sizeof(p.request_ms), True) + \
        letter(sizeof(p.segment_version), False) + letter(sizeof(p.session_cell), True) + \
        letter(sizeof(p.flags), True) + letter(sizeof(p.unused), False)


ENVELOPE_FORMAT = envelope_format()
REQUEST_FORMAT = request_format()
RESPONSE_FORMAT = response_format()
FOLLOWER_FORMAT = follower_format()
# Bytes of each, as C has them.
ENVELOPE_BYTES = sizeof(Envelope)
REQUEST_BYTES = sizeof(RequestHead)
RESPONSE_BYTES = sizeof(ResponseHead)
FOLLOWER_BYTES = sizeof(FollowerProgress)

CALL, REPLY, REQUEST, RESPONSE, FOLLOWER = MSG_CALL, MSG_REPLY, MSG_REQUEST, MSG_RESPONSE, MSG_FOLLOWER
ATTACHED, PROGRESS, LEFT = FOLLOWER_ATTACHED, FOLLOWER_PROGRESS, FOLLOWER_LEFT
APPENDED = RESULT_APPENDED
MESSAGE_BYTES = LANE_MESSAGE_BYTES
EXPRESS_TOKEN = <uint64_t>1 << EXPRESS_BIT
