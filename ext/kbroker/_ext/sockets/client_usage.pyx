"""The quotas of one client, as its connections in this process share them."""
from kbroker._ext.shared.quota_table cimport Quota


cdef inline void take_limit(Limit* limit, Quota quota) noexcept:
    limit.key = 0
    if quota is not None:
        limit[0] = quota.limit


cdef class ClientUsage:
    """The quotas of one client: the bytes that it produces and fetches, and the time (ns) of its requests. None: none.

    All connections of the client share it.
    """

    def __init__(self, bytes client_id not None, Quota produce, Quota fetch, Quota request):
        self.client_id = client_id
        take_limit(&self.produce, produce)
        take_limit(&self.fetch, fetch)
        take_limit(&self.request, request)
