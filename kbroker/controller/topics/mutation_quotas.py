"""The quota of changes to topics (KIP-599): partitions that a client creates and deletes a second.

As in Kafka, a client has a bucket of tokens, one a partition, and may use as many at once as it
gets in all samples of ``controller.quota.window.num``. A request that finds the bucket not
overdrawn may overdraw it; the next one waits until that is paid. Newer versions of requests are
rejected meanwhile, older ones are carried out and their connections muted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kbroker.cluster.client_quotas import AppliedQuota, ClientQuotas, Sharing
from kbroker.config.quota_keys import MUTATION
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import TopicResult
from kbroker.security.principal import parse

# BOUND: clients whose tokens are remembered; above it the one idle longest is dropped.
BUCKETS_MAX = 10_000


class Bucket:
    """Tokens of a client, at most ``seconds`` of its rate; negative when it is overdrawn."""

    __slots__ = ("_at_ms", "_rate", "_tokens")

    def __init__(self, rate: float, seconds: int, now_ms: int) -> None:
        self._rate = rate
        self._tokens = rate * seconds
        self._at_ms = now_ms

    def refill(self, rate: float, seconds: int, now_ms: int) -> None:
        """rate: the present quota, which may have changed."""
        gained = rate * (now_ms - self._at_ms) / 1000
        self._tokens = min(rate * seconds, self._tokens + gained)
        self._rate, self._at_ms = rate, now_ms

    def take(self, count: int) -> None:
        self._tokens -= count

    @property
    def wait_ms(self) -> int:
        """The time until it is no longer overdrawn."""
        return max(0, round(-self._tokens / self._rate * 1000))


class MutationRequest(Protocol):
    """A request to change topics. client_id: None if no quota of changes can apply."""

    @property
    def client_id(self) -> str | None: ...

    @property
    def strict_quota(self) -> bool: ...

    @property
    def asked_by(self) -> str: ...


class Mutations:
    """What one request may change. bucket: None without a quota."""

    def __init__(self, bucket: Bucket | None = None, *, is_strict: bool = False) -> None:
        self._bucket = bucket
        self._is_strict = is_strict
        self._admitted: dict[str, WireError | None] = {}
        self._throttle_ms = 0

    def admit(self, name: str, partitions: int) -> None:
        """Count the change of a topic, once however often it is planned. Raises
        THROTTLING_QUOTA_EXCEEDED if its client has to wait.
        """
        if self._bucket is None:
            return
        if name not in self._admitted:
            self._admitted[name] = self._count(self._bucket, partitions)
        error = self._admitted[name]
        if error is not None:
            raise error.bare()

    def _count(self, bucket: Bucket, partitions: int) -> WireError | None:
        if self._is_strict and bucket.wait_ms:
            self._throttle_ms = bucket.wait_ms
            return WireError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        bucket.take(partitions)
        if not self._is_strict:
            self._throttle_ms = bucket.wait_ms
        return None

    def told(self, results: list[TopicResult]) -> list[TopicResult]:
        """The results; the first one says for how long the client is throttled."""
        if results and self._throttle_ms:
            results[0].throttle_ms = self._throttle_ms
        return results


class MutationQuotas:
    """The tokens of all clients of a controller."""

    def __init__(
        self,
        quotas: Callable[[], Mapping[str, Mapping[str, float]]],
        seconds: int,
        now_ms: Callable[[], int],
    ) -> None:
        """quotas: the present ones, by entity. seconds: for which tokens are saved up."""
        self._quotas = quotas
        self._seconds = seconds
        self._now_ms = now_ms
        self._buckets: dict[Sharing, Bucket] = {}

    def of(self, asked: MutationRequest) -> Mutations:
        """What a request may change now."""
        if asked.client_id is None:
            return Mutations()
        applied = self._applied(parse(asked.asked_by).name, asked.client_id)
        if applied is None:
            return Mutations()
        now_ms = self._now_ms()
        bucket = self._buckets.pop(applied.shared_by, None)  # back to the end: the first is idlest
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = Bucket(applied.bound, self._seconds, now_ms)
        self._buckets[applied.shared_by] = bucket
        bucket.refill(applied.bound, self._seconds, now_ms)
        return Mutations(bucket, is_strict=asked.strict_quota)

    def _applied(self, user: str, client_id: str) -> AppliedQuota | None:
        quotas = {path: own for path, own in self._quotas().items() if MUTATION in own}
        return ClientQuotas(quotas).find(MUTATION, user, client_id)
