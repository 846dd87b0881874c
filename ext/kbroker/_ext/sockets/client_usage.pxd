# The quotas of one client. See client_usage.pyx.
from kbroker._ext.shared.quota_table cimport Limit


cdef class ClientUsage:
    cdef readonly bytes client_id
    cdef Limit produce
    cdef Limit fetch
    cdef Limit request
