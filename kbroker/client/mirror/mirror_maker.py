"""A mirror: one or several sources, with some consumers each, and the producers for the target."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbroker.client.errors import SettingRefused
from kbroker.client.mirror.facing import CopiesInCircles, Sides
from kbroker.client.mirror.stream import MirrorCounts, MirrorPlan, MirrorStream
from kbroker.client.producer.kafka_producer import KafkaProducer
from kbroker.client.settings.client_settings import INT_MAX, LONG_MAX

logger = logging.getLogger("kbroker.client.mirror")

# What Kafka's MirrorMaker sets, unless the user does: nothing is lost, nothing overtakes.
PRODUCER_DEFAULTS: dict[str, Any] = {
    "acks": "all",
    "retries": INT_MAX,
    "max.block.ms": LONG_MAX // 1000,
    "delivery.timeout.ms": INT_MAX,
    "max.in.flight.requests.per.connection": 1,
}
# With one request in flight, a batch that is larger is the only way to have more of a partition.
OUR_PRODUCER_DEFAULTS: dict[str, Any] = {"batch.size": 262_144}
CONSUMER_DEFAULTS: dict[str, Any] = {"enable.auto.commit": False}

# The target takes nothing, and there is something for it, for so long: that is said.
_TROUBLE_S = 5.0
_LOOK_S = 0.25
# BOUND: how long streams may take to commit and to leave; see stream._GIVE_UP_S.
_STOP_S = 40.0
_CLOSE_S = 5.0
_LOOK_BACK_S = 10.0


class MirrorMaker:
    """Copies the topics whose whole name matches ``topics``.

    sources: settings of consumers, one of each source, with ``group.id``. target: of the producers.
    streams: consumers of each source. Raises SettingRefused, and CopiesInCircles, unless a handler
    may give records other topics. ``report``: called every
    ``report_s`` seconds with the counts and the seconds since the start.
    """

    def __init__(
        self,
        sources: Sequence[Mapping[str, Any]],
        target: Mapping[str, Any],
        plan: MirrorPlan,
        *,
        streams: int = 1,
        producers: int = 1,
        report_s: float = 0.0,
        report: Callable[[MirrorCounts, float], None] | None = None,
    ) -> None:
        settings = {**PRODUCER_DEFAULTS, **OUR_PRODUCER_DEFAULTS, **target}
        self.target = str(settings.get("bootstrap.servers", ""))
        self._report_s = report_s
        self._report = report
        self._held = False
        self._changed = threading.Event()
        self._stopping = False
        self._acknowledged = -1.0
        self._moved_at = time.monotonic()
        self._trouble_since = 0.0
        self._began = time.monotonic()
        self._plan = plan
        self._sides: Sides | None = None
        self._circle: CopiesInCircles | None = None
        more: dict[str, Any] = {}
        if plan.handler is None:
            self._sides = Sides(sources, settings)
            self._sides.check(plan.topics)
            if self._sides.client_id:
                more["client.id"] = self._sides.client_id
        self.streams: list[MirrorStream] = []
        self._producers: list[KafkaProducer] = []
        try:
            self._producers += [
                KafkaProducer(_numbered(settings, number, producers)) for number in range(producers)
            ]
            for row in sources:
                self._add_source({**more, **row}, streams, plan)
        except BaseException:
            self._close_producers(0.0)
            raise

    def _add_source(self, row: Mapping[str, Any], count: int, plan: MirrorPlan) -> None:
        if not row.get("group.id"):
            raise SettingRefused("group.id", "a mirror reads as a member of a group: set it")
        for number in range(count):
            self.streams.append(
                MirrorStream(
                    f"stream-{len(self.streams)}",
                    _numbered({**CONSUMER_DEFAULTS, **row}, number, count),
                    self._producers,
                    plan,
                    self._changed.set,
                )
            )

    def run(self) -> bool:
        """Copy until ``stop`` is called; whether that is why it ended, and not an error."""
        self._began = self._moved_at = time.monotonic()
        report_at = self._began + self._report_s
        for stream in self.streams:
            stream.start()
        if self._sides is not None:
            threading.Thread(target=self._look_back, name="mirror-facing", daemon=True).start()
        while (
            not self._stopping
            and not self._circle
            and not any(stream.error for stream in self.streams)
        ):
            self._changed.wait(_LOOK_S)
            self._changed.clear()
            now = time.monotonic()
            self._look(now)
            if self._report is not None and self._report_s and now >= report_at:
                report_at = max(report_at + self._report_s, now)
                self._report(self.counts(), now - self._began)
        return self._end()

    def stop(self) -> None:
        """Let ``run`` commit what is acknowledged, and return. Any thread, and signal handlers."""
        self._stopping = True
        self._changed.set()

    def counts(self) -> MirrorCounts:
        """Of all streams."""
        total = MirrorCounts()
        for stream in self.streams:
            total = total.plus(stream.counts())
        held_s = time.monotonic() - self._trouble_since if self._held else 0.0
        return total._replace(held_s=held_s)

    # -- whether the target takes anything

    def _look(self, now: float) -> None:
        acknowledged = sum(one.metrics()["record-send-total"] for one in self._producers)
        waiting = [at for at in (stream.waiting_since for stream in self.streams) if at is not None]
        if acknowledged != self._acknowledged or not waiting:
            self._acknowledged = acknowledged
            self._moved_at = now
            if self._held:
                self._hold(False)
                logger.warning(
                    "writing to %s again, after %.0f s", self.target, now - self._trouble_since
                )
        elif not self._held and now - max(self._moved_at, min(waiting)) >= _TROUBLE_S:
            self._hold(True)
            self._trouble_since = self._moved_at
            reasons = [one.trouble() for one in self._producers]
            reasons += [stream.trouble for stream in self.streams]
            why = next(filter(None, reasons), "no response")
            logger.warning(
                "cannot write to %s: %s; reading stops until that is possible again",
                self.target,
                why,
            )

    def _hold(self, held: bool) -> None:
        self._held = held
        for stream in self.streams:
            stream.hold(held)

    def _look_back(self) -> None:
        """Another mirror, in the other direction, may have been started at the same time."""
        assert self._sides is not None
        time.sleep(_LOOK_BACK_S)
        try:
            self._sides.check(self._plan.topics)
        except CopiesInCircles as error:
            self._circle = error
            self._changed.set()

    # -- the end

    def _end(self) -> bool:
        for stream in self.streams:
            stream.stop()
        until = time.monotonic() + _STOP_S
        for stream in self.streams:
            if not stream.join(max(0.0, until - time.monotonic())):
                logger.error("%s does not end; it is left alone", stream.name)
        if self._circle is not None:
            logger.error("refused: %s", self._circle)
        failed = [stream for stream in self.streams if stream.error is not None]
        for stream in failed:
            logger.error("%s has failed: %s", stream.name, stream.error, exc_info=_own(stream))
        self._close_producers(0.0 if failed or self._held else _CLOSE_S)
        return not failed and self._circle is None

    def _close_producers(self, seconds: float) -> None:
        for producer in self._producers:
            producer.close(seconds)


def _own(stream: MirrorStream) -> BaseException | None:
    """An error that is ours has a traceback."""
    from kbroker.client.errors import ClientError

    return None if isinstance(stream.error, ClientError) else stream.error


def _numbered(settings: Mapping[str, Any], number: int, count: int) -> dict[str, Any]:
    """With an id of its own for each client of several."""
    numbered = dict(settings)
    for name in ("client.id", "group.instance.id"):
        if count > 1 and numbered.get(name):
            numbered[name] = f"{numbered[name]}-{number}"
    return numbered


def topic_pattern(text: str, excluded: str | None = None) -> re.Pattern[str]:
    """Of names that match ``text`` and not ``excluded``: regular expressions, with commas for
    ``|``; ``*`` alone is all. Raises SettingRefused.
    """
    wanted = _expression("whitelist", text)
    if excluded is None:
        return re.compile(wanted)
    return re.compile(f"(?!(?:{_expression('blacklist', excluded)})$)(?:{wanted})", re.DOTALL)


def _expression(option: str, text: str) -> str:
    expression = text.strip().replace(",", "|").replace(" ", "").lstrip("\"'").rstrip("\"'")
    if expression == "*":
        return ".*"
    try:
        re.compile(expression)
    except re.error as error:
        raise SettingRefused(option, f"{text} is an invalid regex: {error}") from error
    return expression
