# Structs that cross processes inside PRODUCE and PRODUCE_RESULT messages, and the envelope before them.
# Native byte order and alignment: sender and receiver are forks of one build on one machine.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef enum MessageKind:
    MSG_CALL = 1            # JSON request
    MSG_REPLY = 2           # JSON answer
    MSG_PRODUCE = 3         # count x ProduceDescriptor
    MSG_PRODUCE_RESULT = 4  # count x ProduceResult, then what each has behind the structs, in their order
    MSG_WAKE = 5            # count x int32 slot
    MSG_REQUEST = 6         # a part of a request to a coordinator (ipc/lane_calls.py)
    MSG_ANSWER = 7          # a part of its answer


cdef struct Envelope:
    uint8_t kind
    uint8_t sender_kind
    uint16_t sender_index
    uint32_t sender_incarnation
    uint32_t target_incarnation
    uint32_t count


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
    # The request's transactional id (UTF-8): it begins so many bytes before the batch. Size 0: it has none.
    uint32_t transactional_id_back
    uint32_t transactional_id_size


cdef struct ProduceResult:
    uint64_t request
    uint32_t ordinal
    int16_t error_code
    uint16_t error_text_size       # UTF-8 bytes of this result behind the structs
    int64_t base_offset
    int64_t log_append_time_ms
    int64_t log_start_offset
    int32_t bad_record_index       # -1, or the first record that made the batch invalid (KIP-467)
    uint32_t more_bad_records      # int32 indexes of the others, behind the text
