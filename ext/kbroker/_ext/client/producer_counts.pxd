# What a producer counts for its metrics: by batch, request and call of a socket, never by record but for two additions.
from libc.stdint cimport int64_t

# Since the start. With the lock of the accumulator, except for what only the sender's thread counts.
cdef struct Counters:
    int64_t records            # taken by `append`
    int64_t record_bytes
    int64_t batches            # closed or sent
    int64_t acknowledged       # records
    int64_t failed
    int64_t retried
    int64_t splits             # batches that were too large for their brokers
    int64_t waited_us          # for buffer.memory
    # Of batches when they are sent first.
    int64_t sent_batches
    int64_t sent_records
    int64_t batch_bytes
    int64_t queued_us          # from their first record on
    int64_t measured           # of these, those whose records had a known size before they were compressed
    int64_t compression_ppm    # the sum of what compression left of each
    # The sender's.
    int64_t requests
    int64_t request_bytes
    int64_t responses
    int64_t latency_us         # until them
    int64_t throttled_ms       # as they say
    int64_t sent_bytes
    int64_t received_bytes
    int64_t transfers          # calls that sent or received something
    int64_t polls
    int64_t polling_us         # for which they slept
    int64_t transferring_us

# The largest since they were taken last. With the lock.
cdef struct Maxima:
    int64_t record_bytes
    int64_t batch_bytes
    int64_t queued_us
    int64_t request_bytes
    int64_t latency_us
    int64_t throttled_ms

# Of the connections to one node. The sender's; latency_max_us since it was taken last, with the lock.
cdef struct NodeCounts:
    int64_t requests
    int64_t request_bytes
    int64_t responses
    int64_t latency_us
    int64_t latency_max_us
    int64_t sent_bytes
    int64_t received_bytes

# Of one topic. With the lock.
cdef struct TopicCounts:
    int64_t acknowledged
    int64_t failed
    int64_t retried
    int64_t batch_bytes
    int64_t measured
    int64_t compression_ppm
