"""The Fetch requests of a network process, between its loop and the fetch engine.

A fetch is completed at once or parked; the engine says when a parked one is complete, and its token finds the request
again. A small reply is copied into the response; a large one stays a FetchReply, which ``responses`` sends from the
files.
"""
from cpython.ref cimport Py_INCREF

from kbroker._ext.base.api_keys cimport FETCH_FLEXIBLE
from kbroker._ext.base.socket_api cimport monotonic_ns
from kbroker._ext.base.wire cimport READ_OK, Reader, make_reader, read_string, skip_tagged_fields
from kbroker._ext.fetch.fetch_purgatory cimport ParkedFetch
from kbroker._ext.fetch.fetch_send cimport copy_small
from kbroker._ext.network.scarcity cimport holders_of_files
from kbroker._ext.sockets.requests cimport REQUEST_WAITING, token_of

from kbroker._ext.fetch.fetch_decode import FetchDecodeError
from kbroker._ext.network.connection import CloseConnection


cdef class FetchRequests:
    """Created by the loop of the network process."""

    def __cinit__(
        self, FetchEngine engine not None, RequestTable requests not None, Responses responses not None,
        ClientLimits limits not None,
    ):
        self.engine = engine
        self.requests = requests
        self.responses = responses
        self.limits = limits
        engine.quotas = limits.table

    cdef int start(self, Connection c, Request* request, const uint8_t* frame, int32_t size, int64_t now_ms) except -1:
        cdef:
            Reader r = make_reader(frame + 8, size - 8)
            const uint8_t* client_id = NULL
            int32_t client_id_size = 0
            FetchReply reply
        if read_string(&r, &client_id, &client_id_size) != READ_OK:
            raise CloseConnection("a malformed Fetch request: bad client id")
        if request.api_version >= FETCH_FLEXIBLE and skip_tagged_fields(&r) != READ_OK:
            raise CloseConnection("a malformed Fetch request: bad header tags")
        self.engine.access = c.access
        self.engine.listener = <uint8_t>c.listener
        self.engine.limit.key = 0
        if self.limits.on and c.usage is not None and c.usage.fetch.key:
            self.limits.table.locate(&c.usage.fetch, now_ms)
            self.engine.limit = c.usage.fetch
            self.engine.prepaid = c.fetch_prepaid
        try:
            reply = self.engine.handle(
                r.pos, r.end - r.pos, request.api_version, request.correlation_id, token_of(request), now_ms
            )
        except FetchDecodeError as reason:
            raise CloseConnection(f"a malformed Fetch request: {reason}") from None
        if self.engine.follower_session >= 0:
            request.of_follower = True
            if c.follower_session and c.follower_session != self.engine.follower_session:
                self.engine.end_follower(c.follower_session)  # a connection has one
            c.follower_session = self.engine.follower_session
        if reply is not None:
            self.finish(request, reply, now_ms)
        else:
            request.parked = True
            request.waits_ns = monotonic_ns()
        return self.drain(now_ms)

    cdef int finish(self, Request* request, FetchReply reply, int64_t now_ms) except -1:
        cdef Connection c = <Connection>request.connection
        cdef int32_t throttle_ms
        cdef int copied
        if self.limits.on and reply.throttle_ms >= 0:
            self.limits.throttle(c, reply.throttle_ms, now_ms)
            c.fetch_prepaid = reply.prepaid
        throttle_ms = request.throttle_ms = c.throttle_ms(now_ms)
        if throttle_ms:
            reply.set_throttle(throttle_ms)
        copied = copy_small(request, reply)
        request.parked = False
        request.started_ns = now_ms * 1000000
        if copied == 0:
            Py_INCREF(reply)
            request.fetch_reply = <void*>reply
        else:
            reply.release()
            if copied < 0:
                request.silent = True
                request.close_after = True
        return self.responses.ready(request, monotonic_ns())

    cdef int drain(self, int64_t now_ms) except -1:
        cdef FetchReply reply
        cdef Request* request
        while True:
            reply = self.engine.next_completed()
            if reply is None:
                return 0
            request = self.requests.find(reply.token)
            if request == NULL or request.connection == NULL or request.state != REQUEST_WAITING:
                reply.release()
            else:
                self.finish(request, reply, now_ms)

    cdef int hurry(self, frozenset brokers, int64_t now_ms) except -1:
        cdef ParkedFetch waiting
        self.engine.now_ms = self.engine.files.now_ms = now_ms
        for waiting in list(self.engine.purgatory.by_token.values()):
            if waiting.terms.replica_id in brokers:
                self.engine.complete(waiting, 0)
        return self.drain(now_ms)

    cdef int64_t expire(self, int64_t now_ms) except -1:
        cdef int64_t deadline = self.engine.next_deadline_ms()
        cdef int64_t now
        if deadline >= 0:
            now = monotonic_ns() // 1000000
            if deadline <= now:
                now_ms = now
                self.engine.expire(now)
        self.drain(now_ms)  # including those that a change of topics has completed
        return now_ms

    cdef int forget(self, Request* request) except -1:
        return self.engine.cancel(token_of(request))

    cdef list relief(self, object connections, int64_t now_ms):
        if self.engine.reader.starved_total == self.starved_seen:
            return []
        self.starved_seen = self.engine.reader.starved_total
        return holders_of_files(connections, self.engine.files.capacity, now_ms)
