"""A batch as Python's part of the sender sees it, which decides what becomes of it."""

from cpython.bytes cimport PyBytes_FromStringAndSize

from kbroker._ext.client.producer_batch cimport BATCH_DONE, BATCH_FAILED, BATCH_TAKEN, Batch, hold, release


cdef class SentBatch:
    """A batch. It stays what it is; ``SendLoop`` has the calls that end it or send it again."""

    def __dealloc__(self):
        if self.batch != NULL:
            release(self.batch)

    @property
    def topic(self) -> str:
        return <object>self.batch.part.topic.name

    @property
    def partition(self) -> int:
        return self.batch.part.index

    @property
    def records(self) -> int:
        return self.batch.count

    @property
    def attempts(self) -> int:
        """How often it was sent."""
        return self.batch.attempts

    @property
    def base_offset(self) -> int:
        """Where it was appended; -1 if that is unknown, or before its end."""
        return self.batch.base_offset

    @property
    def failed(self) -> bool:
        return self.batch.state == BATCH_FAILED

    @property
    def codec(self) -> int:
        """Attribute bits 0-2."""
        return self.batch.codec

    @property
    def producer(self) -> tuple[int, int, int]:
        """Producer id, epoch and first sequence number, -1 each where it has none."""
        return self.batch.producer_id, self.batch.producer_epoch, self.batch.sequence

    @property
    def data(self) -> bytes:
        """It as it was sent last. Only while it is ``taken``."""
        return PyBytes_FromStringAndSize(<const char*>self.batch.data, <Py_ssize_t>self.batch.size)

    @property
    def taken(self) -> bool:
        """Whether it waits for a decision: in no queue, no request, and not at its end."""
        return self.batch.state == BATCH_TAKEN

    @property
    def ended(self) -> bool:
        """Whether its futures are done, or those of other batches."""
        return self.batch.state >= BATCH_DONE


cdef SentBatch handle_of(Batch* batch):
    cdef SentBatch made = SentBatch.__new__(SentBatch)
    hold(batch)
    made.batch = batch
    return made
