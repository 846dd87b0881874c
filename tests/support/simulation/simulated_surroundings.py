"""What a consumer runs on, in simulated time: ``Surroundings`` without a thread or a socket.

A call in a lane runs at the moment in which brokers get its requests; its result comes later, by as
much as its answers took. Where the call would sleep before another attempt it ends, and is begun
again after that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from support.simulation.simulated_brokers import FOREVER, Broker, Brokers, Event

from kbroker.client.connections.cluster import GROUP, Cluster
from kbroker.client.connections.retry import FIRST_PAUSE_S, Retry
from kbroker.client.consumer.consumer_metadata import ask
from kbroker.client.consumer.lanes import LaneCall
from kbroker.client.consumer.member_thread import Ask, End, Interrupted, LookUp, WaitUntil
from kbroker.client.consumer.surroundings import Surroundings
from kbroker.client.errors import ClientError, ConnectionLost, Timeout
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message

VERSIONS = {ApiKey.OFFSET_FETCH: 7, ApiKey.OFFSET_FOR_LEADER_EPOCH: 4, ApiKey.LEAVE_GROUP: 5}
_SILENT_S = 5.0
_MOVED = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


class Paused(BaseException):
    """A call would sleep now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class SimulatedRetry(Retry):
    """In the time of a cluster."""

    def __init__(self, what: str, seconds: float, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        super().__init__(what, seconds)
        self.attempts = cluster.attempts
        self._pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self.attempts, 10), self._pause_max_s)

    def clock(self) -> float:  # type: ignore[override]
        return self._cluster.time

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        raise Paused(seconds)


class SimulatedCluster(Cluster):
    """late: by how much the answers so far came later than the moment in which they were given.
    attempts: earlier ones of the same call.
    """

    brokers: Brokers
    late = 0.0
    attempts = 0

    @property
    def time(self) -> float:
        return self.brokers.world.now + self.late

    def retry(self, what: str, deadline: float | None = None) -> Retry:
        return SimulatedRetry(what, self.deadline if deadline is None else deadline, self)

    def _connect(self, address: tuple[str, int], retry: Retry) -> Any:
        deadline = min(retry.attempt(self.connect_timeout), retry.step(self.request_timeout))
        broker = self.brokers.nodes[address[1] - 9000]
        try:
            self.wait_for(broker, deadline, "connecting")
        except (ConnectionLost, Timeout):
            self._failed(address)
            raise
        self._failed_at.pop(address, None)
        return SimulatedConnection(self, broker)

    def wait_for(self, broker: Broker, deadline: float, what: str) -> None:
        """Until a broker has answered. Raises ConnectionLost, Timeout."""
        name = f"{broker.address[0]}:{broker.address[1]}"
        if broker.is_dead:
            self.late += 0.001
            raise ConnectionLost(name, f"{what}: refused")
        self.late += self.brokers.delay(broker)
        at = max(self.time, broker.silent_until)
        if at > deadline:
            self.late += max(0.0, deadline - self.time)
            raise Timeout(f"{name}: {what}", 0.0)
        self.late += at - self.time


class SimulatedConnection:
    """To one broker, until that is cut."""

    versions = VERSIONS
    expired = False
    used_at = FOREVER
    client_id = "simulated"
    finalized_features: ClassVar[dict[str, int]] = {}

    def __init__(self, cluster: SimulatedCluster, broker: Broker) -> None:
        self.cluster = cluster
        self.broker = broker
        self.host, self.port = broker.address
        self.address = f"{self.host}:{self.port}"
        self.incarnation = broker.incarnation
        self.failed = self.closed = False
        self.in_flight = 0

    def close(self) -> None:
        self.closed = True
        self.in_flight = 0

    def fail(self) -> None:
        self.failed = True
        self.close()

    def version_of(self, api_key: int, at_most: int | None = None) -> int:
        ours = ApiKey(api_key).versions[1]
        if api_key == ApiKey.FETCH:
            ours = self.cluster.brokers.fetch_version
        return min(VERSIONS.get(ApiKey(api_key), ours), ours if at_most is None else at_most)

    def speaks(self, api_key: int) -> bool:
        return True

    def call(self, request: Message, deadline: float, *, at_most: int | None = None) -> Any:
        return self.receive(self.send(request, deadline), deadline)

    def send(self, request: Message, deadline: float, *, at_most: int | None = None) -> Any:
        self.in_flight += 1
        return _Pending(request)

    def receive(self, pending: _Pending, deadline: float) -> Any:
        brokers, cluster, what = self.cluster.brokers, self.cluster, type(pending.request).__name__
        self.in_flight -= 1
        try:
            if self.incarnation != self.broker.incarnation or brokers.is_lost():
                raise ConnectionLost(self.address, f"{what}: the connection was reset")
            answers: list[Any] = []
            brokers.requests += 1
            if self.broker.silent_until < FOREVER and not self.broker.is_dead:
                brokers.handle(self.broker, pending.request, answers.append)
            cluster.wait_for(self.broker, deadline, what)
            if brokers.is_lost():
                raise ConnectionLost(self.address, f"{what}: closed by the broker")
        except ClientError:
            self.fail()
            raise
        return answers[0]


class _Pending:
    def __init__(self, request: Message) -> None:
        self.request = request
        self.version = 5  # of ListOffsets, whose answers depend on it


class SimulatedInbox:
    """wake: the program goes on."""

    def __init__(self) -> None:
        self.on_wake: Callable[[], Any] = lambda: None
        self._posted: deque[Callable[[], Any]] = deque()

    def post(self, call: Callable[[], Any]) -> None:
        self._posted.append(call)
        self.wake()

    def wake(self) -> None:
        self.on_wake()

    def take(self) -> bool:
        found = bool(self._posted)
        while self._posted:
            self._posted.popleft()()
        return found

    @property
    def is_empty(self) -> bool:
        return not self._posted

    def close(self) -> None:
        pass


class SimulatedLane:
    """One call after the other."""

    def __init__(self, cluster: SimulatedCluster, inbox: SimulatedInbox) -> None:
        self._cluster = cluster
        self._world = cluster.brokers.world
        self._inbox = inbox
        self._queue: deque[Callable[[], None]] = deque()
        self._busy = False

    def run(
        self,
        call: Callable[[Any, float], Any],
        what: str,
        seconds: float,
        then: Callable[[Any, Exception | None], Any] | None = None,
    ) -> LaneCall:
        made, deadline = LaneCall(), self._world.now + seconds
        cluster = self._cluster

        def begin() -> None:
            cluster.attempts = 0
            if deadline - self._world.now <= 0 < seconds:
                made.error = Timeout(what, seconds, "earlier calls took all of it")
                end()
            else:
                self._world.after(self._world.random.uniform(0, 0.01), attempt)

        def attempt() -> None:
            cluster.late = 0.0
            try:
                made.result = call(cluster, max(deadline - self._world.now, 0.0))
            except Paused as paused:
                cluster.attempts += 1
                self._world.after(cluster.late + paused.seconds, attempt)
                return
            except ClientError as error:
                made.error = error
            self._world.after(cluster.late, end)

        def end() -> None:
            made.done = True
            self._busy = False
            if then is not None:
                self._inbox.post(lambda: then(made.result, made.error))
            else:
                self._inbox.wake()
            self._next()

        self._queue.append(begin)
        self._next()
        return made

    def _next(self) -> None:
        if self._queue and not self._busy:
            self._busy = True
            self._queue.popleft()()

    def close(self, timeout: float) -> None:
        pass

    def join(self, timeout: float) -> None:
        pass


class SimulatedNodeLanes:
    def __init__(self, cluster: Callable[[], Any], inbox: SimulatedInbox) -> None:
        self._cluster = cluster
        self._inbox = inbox
        self._lanes: dict[int, SimulatedLane] = {}

    def of(self, node: int) -> SimulatedLane:
        if node not in self._lanes:
            self._lanes[node] = SimulatedLane(self._cluster(), self._inbox)
        return self._lanes[node]

    def close(self, timeout: float) -> None:
        pass

    def join(self, timeout: float) -> None:
        pass


class SimulatedLink:
    """One fetch in flight."""

    wants_to_write = False

    def __init__(self, connection: Any, inbox: SimulatedInbox) -> None:
        self.connection = connection
        self.address = connection.address
        self._inbox = inbox
        self._brokers: Brokers = connection.cluster.brokers
        self.in_flight = False
        self.sent_at = 0.0
        self._arrived: list[Any] = []

    def version(self, at_most: int | None = None) -> int:
        return int(self.connection.version_of(ApiKey.FETCH, at_most))

    def send(self, request: Any, version: int) -> None:
        if self.connection.incarnation != self.connection.broker.incarnation:
            raise ConnectionLost(self.address, "sending a fetch: reset")
        self.in_flight, self.sent_at = True, self._brokers.world.now
        node = self.connection.broker.number
        self._brokers.deliver(node, request, self._arrive, lambda: self._arrive(None))

    def _arrive(self, response: Any) -> None:
        if not self.connection.closed:
            self._arrived.append(response)
            self._inbox.wake()

    def receive(self) -> Any:
        if not self._arrived:
            return None
        response = self._arrived.pop()
        if response is None:
            raise ConnectionLost(self.address, "closed by the broker")
        self.in_flight = False
        return response

    def close(self) -> None:
        self.connection.close()


class _Lock:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class SimulatedMemberThread:
    """See ``member_thread.MemberThread``. token: of what it waits for."""

    def __init__(self, group: str, cluster: SimulatedCluster, member: Any) -> None:
        self.lock = _Lock()
        self.on_change: Callable[[], Any] = lambda: None
        self._world = cluster.brokers.world
        self._brokers = cluster.brokers
        self._group, self._cluster, self._member = group, cluster, member
        self._timer: Event | None = None
        self._token: object | None = None
        self._connection: SimulatedConnection | None = None
        self.ended = False

    def start(self) -> None:
        self.poke()

    def poke(self) -> None:
        if self.ended:
            return
        if self._token is None:
            self._wait(0.0)
        elif self._member.is_leaving():
            self._failed(self._token, Interrupted("the consumer is closed"))

    def join(self, timeout: float) -> bool:
        return self.ended

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._world.after(seconds, self._go)

    def _go(self) -> None:
        if self._token is not None or self.ended:
            return
        now = self._world.now
        action = self._member.next(now)
        self.on_change()
        if isinstance(action, WaitUntil):
            if action.until < FOREVER:
                self._wait(action.until - now)
        elif isinstance(action, End):
            self.ended = True
        else:
            self._token = token = object()
            self._cluster.late, self._cluster.attempts = 0.0, 0
            if isinstance(action, LookUp):
                self._look_up(token, action)
            else:
                self._ask(token, action)

    def _look_up(self, token: object, action: LookUp) -> None:
        names = None if action.topics is None else sorted(action.topics)
        try:
            found = ask(self._cluster, names, create=False).topics
        except ClientError as failure:
            error = failure
            self._world.after(self._cluster.late, lambda: self._failed(token, error))
            return

        def take() -> None:
            if self._token is token:
                self._token = None
                self._member.take_topics(found, self._world.now)
                self._wait(0.0)

        self._world.after(self._cluster.late, take)

    def _ask(self, token: object, action: Ask) -> None:
        cluster = self._cluster
        retry = cluster.retry(f"a request of group {self._group}", action.seconds)
        try:
            node = cluster.coordinator(self._group, GROUP, retry)
            connection: Any = cluster.connection(node, retry)
            made = action.request
            request = made if isinstance(made, Message) else made(connection)
            if connection.incarnation != connection.broker.incarnation:
                connection.fail()
                raise ConnectionLost(connection.address, "reset")
        except ClientError as failure:
            error = failure
            self._world.after(cluster.late, lambda: self._lost(token, error))
            return
        self._connection = connection
        connection.in_flight += 1  # nothing else is asked there meanwhile

        def send() -> None:
            lost = ConnectionLost(connection.address, "closed by the broker")
            self._brokers.deliver(
                node,
                request,
                lambda response: self._take(token, response),
                lambda: self._lost(token, lost),
            )

        late = Timeout(f"{connection.address}: a response", 0.0)
        self._world.after(cluster.late, send)
        self._world.after(retry.deadline - self._world.now, lambda: self._lost(token, late))
        self._world.after(cluster.late + _SILENT_S, lambda: self._look(token, node))

    def _look(self, token: object, node: int) -> None:
        """Whether another broker coordinates by now."""
        if self._token is not token:
            return
        self._cluster.late = 0.0
        retry = self._cluster.retry(f"the coordinator of group {self._group}", 2.0)
        try:
            has_moved = self._cluster.find_coordinator(self._group, GROUP, retry) != node
        except ClientError:
            has_moved = False
        if has_moved:
            error = ConnectionLost(f"node {node}", "another broker coordinates by now")
            self._world.after(self._cluster.late, lambda: self._lost(token, error))
        else:
            self._world.after(self._cluster.late + _SILENT_S, lambda: self._look(token, node))

    def _lost(self, token: object, error: ClientError) -> None:
        if self._token is token:
            if self._connection is not None:
                self._connection.fail()
                self._connection = None
            if isinstance(error, ConnectionLost | Timeout):
                self._cluster.forget_coordinator(self._group, GROUP)
            self._failed(token, error)

    def _failed(self, token: object, error: ClientError) -> None:
        if self._token is token:
            if isinstance(error, Interrupted) and self._connection is not None:
                self._connection.close()
            self._token = self._connection = None
            self._member.failed(error, self._world.now)
            self._wait(0.0)

    def _take(self, token: object, response: Any) -> None:
        if self._token is token:
            if self._connection is not None:
                self._connection.in_flight = 0
            self._token = self._connection = None
            if getattr(response, "error_code", 0) in _MOVED:
                self._cluster.forget_coordinator(self._group, GROUP)
            self._member.take(response, self._world.now)
            self._wait(0.0)


class SimulatedSurroundings(Surroundings):
    """Of one consumer."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.clock = brokers.world.clock
        self.made = SimulatedInbox()
        self.threads: list[SimulatedMemberThread] = []

    def cluster(self, bootstrap: str, security: Any, **settings: Any) -> Any:
        made = SimulatedCluster(bootstrap, security, **settings)
        made.brokers = self._brokers
        return made

    def inbox(self) -> Any:
        return self.made

    def lane(self, name: str, cluster: Any, inbox: Any) -> Any:
        return SimulatedLane(cluster, inbox)

    def node_lanes(self, name: str, cluster: Any, inbox: Any) -> Any:
        return SimulatedNodeLanes(cluster, inbox)

    def connect(
        self,
        name: str,
        inbox: Any,
        host: str,
        port: int,
        seconds: float,
        then: Callable[[Any, Exception | None], Any],
        **settings: Any,
    ) -> None:
        broker, world = self._brokers.nodes[port - 9000], self._brokers.world
        cluster = self.cluster(f"{host}:{port}", None)

        def end() -> None:
            made, error = None, None
            cluster.late = 0.0
            try:
                cluster.wait_for(broker, world.now + seconds, "connecting")
                made = SimulatedConnection(cluster, broker)
            except ClientError as failure:
                error = failure
            world.after(cluster.late, lambda: inbox.post(lambda: then(made, error)))

        world.after(0.001, end)

    def fetch_link(self, connection: Any) -> Any:
        return SimulatedLink(connection, self.made)

    def member_thread(self, group: str, cluster: Any, member: Any) -> Any:
        self.threads.append(SimulatedMemberThread(group, cluster, member))
        return self.threads[-1]
