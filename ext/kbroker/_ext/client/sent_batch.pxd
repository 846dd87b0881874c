# Batches in the hands of Python's part of the sender; see sent_batch.pyx.
from kbroker._ext.client.producer_batch cimport Batch

cdef class SentBatch:
    cdef Batch* batch


cdef SentBatch handle_of(Batch* batch)
