from kbroker._ext.network.connection import Connection

# connection, API key, version, correlation id, bytes of the response or -1, [total, queue, local,
# remote, throttle, response queue and send time in ns]
SlowRequest = tuple[Connection, int, int, int, int, list[int]]

class Responses:
    def watch_for(self, slow_ms: int) -> None: ...
    def take_slow(self) -> tuple[list[SlowRequest], int]: ...
