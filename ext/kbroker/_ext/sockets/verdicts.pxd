# What the hot paths of a network process may do for a principal. See verdicts.pyx.
from libc.stdint cimport uint64_t


cdef enum Question:
    MAY_READ_TOPIC = 0
    MAY_WRITE_TOPIC = 1
    MAY_WRITE_TRANSACTION = 2    # of a transactional id
    QUESTIONS = 3


cdef class Verdicts:
    cdef readonly bytes principal_wire   # as lanes carry it: UTF-8, nothing for an anonymous one
    cdef readonly bint everything        # each answer is yes: the hot paths ask no further
    cdef readonly uint64_t version       # changes when the answers are forgotten
    cdef list answers                    # by question: name -> bool
    cdef bint may(self, int question, bytes name) except -1

# Of one who may do everything, where there is no connection: tests and tools.
cdef Verdicts unrestricted()
