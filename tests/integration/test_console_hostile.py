"""Whatever a request has in it, the console answers, and never with 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.running.grids import some_of
from support.surfaces.console_calls import call, got

from kbroker.console.operation import FLAG, INTEGER, INTEGERS, SETTINGS, TEXTS, Operation, Parameter
from kbroker.console.operations import OPERATIONS
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

TEXTS_OF_ATTACKERS = st.sampled_from(
    ["", " ", "\0", "\u00fc", "\ud800", "\u202e", "..", "%00", "\x7f", "*", "orders", "g", "nan",
     "inf", "-1", "1e400", "0x10", "1_0", "\u0663", "9223372036854775808", "true", "null", "[]",
     "User:", "User:\0", "x" * 300, "\U0001f600" * 70, "a/b", "a?b#c", "__consumer_offsets",
     "AAA=", "A", "\u00fc==", "x" * 1001]
) | st.text(max_size=20)  # fmt: skip
NUMBERS = st.sampled_from([0, -1, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30])
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS_OF_ATTACKERS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXTS_OF_ATTACKERS, inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        got(started, "/topics", {"name": "orders", "partitions": 2})
        got(started, "/topics/orders/messages", {"key_base64": "/w==", "value": "v"})
        yield started


@cache  # hypothesis examines each strategy when it is first drawn from
def hostile_value(row: Parameter) -> st.SearchStrategy[Any]:
    """Of the kind that is asked for, or of any other."""
    of_kind: dict[str, st.SearchStrategy[Any]] = {
        FLAG: st.booleans(),
        INTEGER: NUMBERS | st.integers(row.low, min(row.high, row.low + 5)),
        INTEGERS: st.lists(st.sampled_from([0, 1, 2**31]), max_size=3),
        SETTINGS: st.dictionaries(
            TEXTS_OF_ATTACKERS | st.just("retention.ms"), st.none() | TEXTS_OF_ATTACKERS, max_size=3
        ),
        TEXTS: st.lists(TEXTS_OF_ATTACKERS | st.sampled_from(row.one_of or ("user",)), max_size=3),
    }
    texts = st.sampled_from(row.one_of) if row.one_of else TEXTS_OF_ATTACKERS
    return of_kind.get(row.kind, texts) | ANYTHING


def as_query(value: Any) -> bytes:
    if isinstance(value, list):
        return ",".join(map(str, value)).encode("utf-8", "surrogatepass")
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("examples", some_of([4, 25], [4]))
@pytest.mark.parametrize("each", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_hostile_request_gets_an_answer_that_is_no_500(
    broker: Broker, each: Operation, examples: int
) -> None:
    """What is answered is checked against its schema by ``call``."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        topic = data.draw(TEXTS_OF_ATTACKERS.filter(bool) | st.just("orders"))
        path = each.path.replace("{topic}", quote(topic.encode("utf-8", "surrogatepass"), safe=""))
        query = {
            row.name: as_query(value)
            for row in each.query
            if (value := data.draw(hostile_value(row))) is not None
        }
        body = {row.name: data.draw(hostile_value(row)) for row in each.body} or None

        answer = call(broker, f"{path}?{urlencode(query)}", body, method=each.method)

        # 503: a busy machine may need longer to make internal topics than a page waits.
        assert answer.status in (200, 400, 403, 404, 409, 503), (answer.body, path, query, body)

    ask()


@pytest.mark.parametrize(
    "header",
    ["Basic", "Basic \xfc", "Basic AAAA", "Basic Og==", "Basic " + "A" * 9000, "Bearer x", "\xff"],
)
def test_hostile_login_is_rejected(broker: Broker, header: str) -> None:
    answer = call(broker, "/overview", headers={"Authorization": header})

    assert answer.status in (400, 403, 431)


def test_request_that_is_not_served_at_all_gets_a_problem(broker: Broker) -> None:
    """From the exporter, which has the port, instead of the console."""
    large = call(broker, "/group?group=" + "x" * 9000)
    foreign = call(broker, "/overview", headers={"Host": "evil.example"})

    assert (large.status, large.json["code"]) == (431, "HEAD_TOO_LARGE")
    assert "8192 bytes" in large.message
    assert (foreign.status, foreign.json["code"]) == (403, "FOREIGN_REQUEST")
    assert large.headers["Content-Type"] == "application/problem+json"


def test_null_is_as_if_it_were_left_out(broker: Broker) -> None:
    plan = got(broker, "/cluster/balance", {"dry_run": None, "throttle": None})

    assert plan["dry_run"] and plan["throttle"] is None
