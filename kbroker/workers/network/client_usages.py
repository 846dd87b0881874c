"""The client quotas of a network process: who has which (``_ext.network.client_limits``)."""

from __future__ import annotations

from kbroker._ext.network.net_loop import NetLoop
from kbroker._ext.shared.quota_table import Quota
from kbroker._ext.sockets.client_usage import ClientUsage
from kbroker.cluster.client_quotas import AppliedQuota, ClientQuotas
from kbroker.config.key import LONG_MAX
from kbroker.config.loader import BrokerConfig
from kbroker.config.quota_keys import FETCH, PRODUCE, REQUEST
from kbroker.ipc.calls import FIGURES_MAX, QuotaFigure
from kbroker.security.access import Access

# BOUND: clients whose cells are cached, as clients can invent ids. Then all are looked up again.
KEPT_MAX = 10_000
# A percentage of one core is a number of nanoseconds a second.
NS_OF_PERCENT = 1e7
DEFAULTS = ((PRODUCE, "quota.producer.default"), (FETCH, "quota.consumer.default"))


class ClientUsages:
    """Finds the quotas of clients for a loop, and counts where all processes of the broker do."""

    def __init__(self, loop: NetLoop, config: BrokerConfig) -> None:
        self._loop = loop
        self._defaults = {key: config[name] for key, name in DEFAULTS if config[name] < LONG_MAX}
        self._quotas = ClientQuotas({})
        self._kept: dict[tuple[str, bytes], ClientUsage] = {}
        # By quota, and who shares it.
        self._shared: dict[tuple[str, AppliedQuota], Quota] = {}
        loop.limits.find = self.find
        self.follow({})

    def follow(self, quotas: dict[str, dict[str, float]]) -> None:
        """Apply these quotas, those of the image, from the next request on."""
        self._quotas = ClientQuotas(quotas, self._defaults)
        self._kept, self._shared = {}, {}
        self._loop.forget_quotas(bool(self._quotas))

    def find(self, access: Access, client_id: bytes) -> ClientUsage:
        """The usage of a client; called by the loop."""
        who = access.principal.name, client_id
        known = self._kept.get(who)
        if known is None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
                self._shared.clear()
            known = self._kept[who] = self._usage(*who)
        return known

    def _usage(self, user: str, client_id: bytes) -> ClientUsage:
        name = client_id.decode("utf-8", "replace")
        return ClientUsage(
            client_id,
            self._quota(PRODUCE, user, name),
            self._quota(FETCH, user, name),
            self._quota(REQUEST, user, name, NS_OF_PERCENT),
        )

    def _quota(self, key: str, user: str, client_id: str, factor: float = 1.0) -> Quota | None:
        applied = self._quotas.find(key, user, client_id)
        if applied is None:
            return None
        known = self._shared.get((key, applied))
        if known is None:
            # All processes are forks of one, and so have the same hashes, which no client can
            # predict. With the bound in it, a quota that is changed begins anew.
            cell = hash((key, *applied))
            forgets = key == REQUEST  # a client pauses for it no longer than a sample
            known = Quota(self._loop.limits.table, cell, applied.bound * factor, forgets)
            self._shared[key, applied] = known
        return known

    def figures(self, now_ms: int) -> list[QuotaFigure]:
        """Of the clients that this process has seen; those that have to wait first."""
        usages = []
        for (key, (bound, (user, client_id))), quota in self._shared.items():
            used = quota.used(now_ms) / (NS_OF_PERCENT if key == REQUEST else 1)
            throttle_ms = quota.throttle_ms(now_ms)
            usages.append(QuotaFigure(key, user, client_id, bound, used, throttle_ms))
        usages.sort(key=lambda figure: (-figure.throttle_ms, -figure.used))
        return usages[:FIGURES_MAX]
