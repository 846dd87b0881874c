"""The topics of the cluster image as the hot paths of a network process look them up: one dict access per topic of a request.

Kept by the FetchEngine, which completes the fetches that wait for what changes; read by produce_path and express_path too.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, malloc


cdef class Topic:
    """A topic and the slots of its partitions on this broker; or an unknown one (``alive`` False)."""

    def __cinit__(self, bytes name, bytes topic_id, list slots, list incarnations):
        self.name = name
        self.topic_id = topic_id
        self.logs = []
        if slots is not None:
            self.set_slots(slots, incarnations)

    def __dealloc__(self):
        free(self.slots)
        free(self.incarnations)

    def set_slots(self, list slots not None, list incarnations):
        """slots: by partition, -1 where this broker has no replica. The files of a changed slot are looked up again."""
        cdef int32_t count = <int32_t>len(slots)
        cdef int32_t index, slot
        cdef int32_t* fresh = <int32_t*>malloc(<size_t>max(count, 1) * sizeof(int32_t))
        cdef list logs = [None] * count
        cdef list dropped = self.logs
        cdef int64_t* wanted = <int64_t*>malloc(<size_t>max(count, 1) * sizeof(int64_t))
        if fresh == NULL or wanted == NULL:
            free(fresh)
            free(wanted)
            raise MemoryError
        for index in range(count):
            slot = slots[index]
            fresh[index] = slot
            wanted[index] = -1 if incarnations is None else incarnations[index]
            if index < self.partition_count and self.slots[index] == slot:
                logs[index] = dropped[index]
                dropped[index] = None
        self.close_logs(dropped)
        free(self.slots)
        free(self.incarnations)
        self.slots = fresh
        self.incarnations = wanted
        self.partition_count = count
        self.logs = logs
        self.alive = True

    def retire(self):
        """Mark a topic that has been deleted, and possibly recreated with the same name."""
        self.alive = False
        self.close_logs(self.logs)
        self.logs = [None] * self.partition_count

    cdef int close_logs(self, list logs) except -1:
        cdef LogFiles log
        for log in logs:
            if log is not None:
                log.close()
        return 0

    def slot_list(self) -> list:
        """Slot by partition."""
        cdef int32_t index
        return [self.slots[index] for index in range(self.partition_count)]

    def has_slots(self, list slots, list incarnations) -> bool:
        """Whether set_slots() would change nothing."""
        cdef int32_t index
        return self.slot_list() == slots and (incarnations or [-1] * len(slots)) == [
            self.incarnations[index] for index in range(self.partition_count)
        ]

    cdef LogFiles log_of(self, int32_t index, int32_t log_dir_index, list log_dirs, FileCache cache):
        """The files of a partition in that log directory, or None when there is no such directory."""
        cdef LogFiles log = self.logs[index]
        cdef str directory
        if log_dir_index < 0 or log_dir_index >= len(log_dirs):
            return None
        if log is None or log.log_dir_index != log_dir_index:
            directory = f"{log_dirs[log_dir_index]}/{self.name.decode()}-{index}"
            if log is not None:
                log.close()
            log = LogFiles(directory, cache)
            log.log_dir_index = log_dir_index
            self.logs[index] = log
        return log


cdef class TopicRegistry:
    """Every topic of the cluster image, by name and by id."""

    def __cinit__(self):
        self.by_name = {}
        self.by_id = {}
        self.version = 1

    def put(self, bytes name not None, bytes topic_id not None, list slots not None, list incarnations=None):
        """Add a topic or change its slots; a new id under a known name is another topic."""
        cdef Topic known = self.by_name.get(name)
        if len(topic_id) != 16:
            raise ValueError(f"topic id of {len(topic_id)} bytes")
        if known is not None and known.topic_id == topic_id:
            known.set_slots(slots, incarnations)
        else:
            self.remove(name)
            known = Topic(name, topic_id, slots, incarnations)
            self.by_name[name] = known
            self.by_id[topic_id] = known
        self.version += 1

    def remove(self, bytes name not None):
        """Forget a topic; no error if it is not known."""
        cdef Topic known = self.by_name.pop(name, None)
        if known is not None:
            self.by_id.pop(known.topic_id, None)
            known.retire()
            self.version += 1

    def get(self, bytes name not None):
        """The topic of that name, or None."""
        return self.by_name.get(name)

    cdef Topic find(self, const uint8_t* key, int32_t key_size, bint by_id):
        cdef bytes name = PyBytes_FromStringAndSize(<const char*>key, key_size)
        return (self.by_id if by_id else self.by_name).get(name)
