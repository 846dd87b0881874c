# The authorizer's verdicts for one principal, for the hot paths of a network process. See verdicts.pyx.
from libc.stdint cimport uint64_t


cdef enum Question:
    MAY_READ_TOPIC = 0
    MAY_WRITE_TOPIC = 1
    MAY_WRITE_TRANSACTION = 2    # of a transactional id
    MAY_ACT_ON_CLUSTER = 3       # as other brokers do
    QUESTIONS = 4


cdef class Verdicts:
    cdef readonly bytes principal_wire   # as lanes carry it: UTF-8, empty for an anonymous principal
    cdef readonly bint everything        # everything is allowed: the hot paths need not ask
    cdef readonly uint64_t version       # changes when the verdicts are forgotten
    cdef list cached                    # by question: name -> bool
    # The topics that were asked about last, which most clients ask about again: object and verdict.
    cdef bytes read_name
    cdef bytes write_name
    cdef bint may_read
    cdef bint may_write
    cdef bint may(self, int question, bytes name) except -1
    cdef inline bint may_read_topic(self, bytes name) except -1:
        if name is not self.read_name:
            self.may_read = self.may(MAY_READ_TOPIC, name)
            self.read_name = name
        return self.may_read
    cdef inline bint may_write_topic(self, bytes name) except -1:
        if name is not self.write_name:
            self.may_write = self.may(MAY_WRITE_TOPIC, name)
            self.write_name = name
        return self.may_write

# Verdicts that allow everything, for code without a connection: tests and tools.
cdef Verdicts unrestricted()
