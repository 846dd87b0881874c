# The structs and the envelope of lane messages between processes. lane_layout.pyx has them for Python.
# Native byte order and alignment: sender and receiver are forks of one build on one machine.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef enum MessageKind:
    MSG_CALL = 1            # JSON request
    MSG_REPLY = 2           # JSON response
    MSG_PRODUCE = 3         # count x ProduceDescriptor
    MSG_PRODUCE_RESULT = 4  # count x ProduceResult, then the error text and record indexes of each, in order
    MSG_WAKE = 5            # count x int32 slot
    MSG_REQUEST = 6         # parts of requests to coordinators, each a size (uint32) and a RequestHead before its bytes
    MSG_RESPONSE = 7        # parts of their responses, each a size and a ResponseHead before its bytes
    MSG_FOLLOWER = 8        # count x FollowerProgress, from a network process to the owner of the slots


cdef struct Envelope:
    uint8_t kind
    uint8_t sender_kind
    uint16_t sender_index
    uint32_t sender_incarnation
    uint32_t target_incarnation
    uint32_t count


cdef enum:
    # BOUND: of one MSG_REQUEST or MSG_RESPONSE, below half of a socket's default buffer, so that two of a full size fit. A
    # body that is longer is sent in parts.
    LANE_MESSAGE_BYTES = 65536
    PART_SIZE_BYTES = 4
    EXPRESS_BIT = 63        # of a token: the request belongs to express_path


# The head of a part of a request to a coordinator. After it: client id, host and principal (UTF-8), then the part of
# the body.
cdef packed struct RequestHead:
    uint64_t token          # the network process's, its highest bit set if express_path has sent it
    uint32_t total          # bytes of the body
    uint32_t offset         # of this part of it
    int32_t slot
    uint32_t slot_incarnation
    int16_t api_key
    int16_t version
    uint16_t client_id_size
    uint16_t host_size
    uint16_t principal_size
    uint64_t quota_key      # of its time, and units a second; 0: there is no quota
    double quota_rate


# The head of a part of a response. After it: the part itself, or an error text.
cdef packed struct ResponseHead:
    uint64_t token
    uint32_t total
    uint32_t offset
    int16_t error
    uint16_t unused


# One partition of one Produce request. `request` and `ordinal` are opaque to the worker and come back unchanged.
cdef struct ProduceDescriptor:
    uint64_t request        # the network process's token of the request
    uint32_t ordinal        # which partition of that request
    int32_t slot            # partition-table slot; slot % workers is the receiver
    uint32_t slot_incarnation
    int32_t timeout_ms
    uint64_t arena_offset   # of the record batch, in the sender's arena
    uint32_t size           # bytes of the record batch
    int16_t acks
    int16_t api_version
    # The request's transactional id (UTF-8): it begins this many bytes before the batch. Size 0: it has none.
    uint32_t transactional_id_back
    uint32_t transactional_id_size
    # The quota of its client for the time of requests, to which the worker adds its own. Key 0: there is none.
    uint64_t quota_key
    double quota_rate


cdef enum:
    # Instead of an error code: the batch is appended, and its bytes are not needed any more. The result follows once it is
    # committed, or cannot be. Sent for batches that have waited for a while.
    RESULT_APPENDED = -1000


cdef struct ProduceResult:
    uint64_t request
    uint32_t ordinal
    int16_t error_code
    uint16_t error_text_size       # UTF-8 bytes of this result after the structs
    int64_t base_offset
    int64_t log_append_time_ms
    int64_t log_start_offset
    int32_t bad_record_index       # -1, or the first record that made the batch invalid (KIP-467)
    uint32_t more_bad_records      # int32 indexes of the others, after the text
    int64_t taken_ns               # when the io worker began with it, on the monotonic clock
    int64_t waits_ns               # when it was appended, and waited for replicas; 0: it did not


# The kinds of a FollowerProgress; several may be combined.
cdef enum FollowerFlag:
    FOLLOWER_ATTACHED = 1    # the session has the partition from now on
    FOLLOWER_PROGRESS = 2    # a fetch was read: all fields are set
    FOLLOWER_LEFT = 4        # the session does not have the partition any more


# Where a follower is in a partition that is led here. Sent for partitions whose offset has changed, or that a session has
# got or lost, and for nothing else: a follower that is at the log end and keeps asking shows only in its session's cell.
# Sent only for fetches without an error, read while the slot was led here in `leader_epoch`.
#
# In one lane, the entries of a partition and session come in the order of the requests; several of them may be merged
# into one, in which the newest values are. A restarted owner gets ATTACHED | PROGRESS for every partition of its slots
# that a session has. When a network process is restarted (`Lane.peer_renewed`), all its sessions have ended, without
# LEFT. A follower that reconnects through another network process attaches there before, or after, it has left here: LEFT
# is about its own session_cell only.
cdef struct FollowerProgress:
    int32_t slot
    uint32_t slot_incarnation  # drop the entry if the slot has another one
    int32_t replica_id         # as the follower says; it may be in no assignment
    int32_t leader_epoch       # of the slot when the fetch was read; drop the entry if it is another one now. LEFT: -1
    int64_t fetch_offset       # what the follower asked for: the end of its log. -1 without PROGRESS, as all that follow
    int64_t log_start_offset   # of the follower's log; -1: unknown (Fetch below version 5)
    int64_t log_end_seen       # of this log, when the fetch was read: fetch_offset >= log_end_seen is caught up
    # Place of fetch_offset in the log: of the batch that begins there or contains it. -1: unknown. Only good while the slot's
    # segment_version is `segment_version`.
    int64_t segment_base_offset
    int64_t segment_position
    int64_t request_ms         # monotonic time of the request; LEFT: of the last request of the session
    uint32_t segment_version
    # Index into SessionTimes, of the time of the session's last request; -1: it has none, as fetches without a session. Then
    # every fetch is reported, ATTACHED is never set and there will be no LEFT.
    int32_t session_cell
    int32_t flags              # FollowerFlag
    uint32_t unused
