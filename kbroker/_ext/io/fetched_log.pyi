from kbroker._ext.log.log_append import LogAppender
from kbroker._ext.shared.log_figures import LogFigures

class FetchedLog:
    throttled: bool
    @property
    def wanted(self) -> bool: ...
    @property
    def behind(self) -> bool: ...
    @property
    def appender(self) -> LogAppender: ...
    @property
    def topic(self) -> bytes: ...
    @property
    def partition(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def told_high_watermark(self) -> int: ...
    def __init__(
        self,
        appender: LogAppender,
        topic: str,
        partition: int,
        leader_epoch: int,
        figures: LogFigures | None = None,
    ) -> None: ...
