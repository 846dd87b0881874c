"""The exporter's page of quotas."""

from __future__ import annotations

import pytest

from kbroker.ipc.calls import QuotaFigure
from kbroker.workers.quota_page import quotas_text

pytestmark = pytest.mark.unit


def test_figures_of_a_client_are_the_newest_that_a_process_has() -> None:
    older = QuotaFigure("producer_byte_rate", "alice", "", 1e6, 1000, 0)
    newer = older._replace(used=1500, throttle_ms=70)
    other = QuotaFigure("request_percentage", "", 'c"1', 12.5, 0.25, 0)

    text = quotas_text([[older, other], [], [newer]])

    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'kbroker_quota_used_total{quota="producer_byte_rate",user="alice",client_id=""} 1500',
        'kbroker_quota_used_total{quota="request_percentage",user="",client_id="c\\"1"} 0.25',
        'kbroker_quota_bound{quota="producer_byte_rate",user="alice",client_id=""} 1000000',
        'kbroker_quota_bound{quota="request_percentage",user="",client_id="c\\"1"} 12.5',
        'kbroker_quota_throttle_ms{quota="producer_byte_rate",user="alice",client_id=""} 70',
        'kbroker_quota_throttle_ms{quota="request_percentage",user="",client_id="c\\"1"} 0',
    ]


def test_page_without_quotas_has_its_heads() -> None:
    assert quotas_text([[]]).count("# TYPE") == 3
