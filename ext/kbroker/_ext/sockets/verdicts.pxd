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
    cdef bint may(self, int question, bytes name) except -1

# Verdicts that allow everything, for code without a connection: tests and tools.
cdef Verdicts unrestricted()
