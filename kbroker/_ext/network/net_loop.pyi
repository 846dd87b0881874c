from collections.abc import Callable

from kbroker._ext.fetch.fetch_engine import EpochQuestion, FetchEngine
from kbroker._ext.network.connection import Connection
from kbroker._ext.network.connection_loop import ConnectionLoop
from kbroker._ext.network.express_path import ExpressPath
from kbroker._ext.network.produce_path import ProducePath
from kbroker._ext.shared.arena import Arena
from kbroker._ext.shared.lane import Lane
from kbroker._ext.sockets.requests import RequestTable

class NetLoop(ConnectionLoop):
    # A message with responses from an io worker: its index, the message.
    on_response: Callable[[int, bytes], None] | None
    # a coordinator's error for a request that was forwarded undecoded: token, frame, code, text
    on_rejected: Callable[[Connection, int, bytes, int, bytes], None] | None
    # the fetch engine has questions about epochs
    on_epoch_questions: Callable[[], None] | None
    @property
    def produce(self) -> ProducePath: ...
    @property
    def fetch(self) -> FetchEngine: ...
    @property
    def express(self) -> ExpressPath: ...
    @property
    def lane_drops(self) -> int: ...
    def __init__(
        self,
        arena: Arena,
        requests: RequestTable,
        frame_max: int,
        on_close: Callable[[Connection, str | None], None],
        produce: ProducePath,
        fetch: FetchEngine,
        dispatch: Callable[[Connection, int, bytes], None],
    ) -> None: ...
    def take_request_counts(self) -> list[tuple[int, int]]: ...
    def add_lane(self, lane: Lane) -> None: ...
    def put_epoch_ends(
        self, replies: list[tuple[EpochQuestion, tuple[int, int] | None]]
    ) -> None: ...
    def next_fetch_deadline_ms(self) -> int: ...
    def respond(self, token: int, response: bytes | None) -> None: ...
    def end_turn(self) -> bool: ...
    def turns(self, timeout_ms: int) -> bool: ...
    def expire_at(self, now_ns: int) -> None: ...
    def produces_in_flight(self) -> int: ...
