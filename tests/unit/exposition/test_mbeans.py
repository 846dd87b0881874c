"""Names of MBeans in each family."""

from __future__ import annotations

import pytest

from kbroker.exposition.mbeans import (
    ATTRIBUTE,
    GAUGE,
    METER,
    NO_TAGS,
    PERCENT,
    TIMES,
    Bean,
    Distribution,
    Tags,
    attributes,
    confluent_lines,
    jmx_lines,
    label,
    object_name,
    plain_lines,
)

pytestmark = pytest.mark.unit

BYTES_IN = Bean("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", METER, "Bytes.")
IDLE = Bean(
    "kafka.server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent", PERCENT, "Idle."
)
TOTAL = Bean("kafka.network", "RequestMetrics", "TotalTimeMs", TIMES, "Time.")
CONNECTIONS = Bean("kafka.server", "socket-server-metrics", "connection-count", ATTRIBUTE, "C.")
ISR = Bean("kafka.cluster", "Partition", "UnderMinIsr", GAUGE, "Isr.")


def text_of(pieces: object) -> list[str]:
    return [line for line in "".join(pieces).splitlines() if not line.startswith("# HELP")]  # type: ignore[call-overload]


def test_meter_is_a_counter_without_persec() -> None:
    samples = [(NO_TAGS, 5), (Tags(("topic", "t")), 3)]

    assert text_of(jmx_lines(BYTES_IN, samples)) == [
        "# TYPE kafka_server_brokertopicmetrics_bytesin_total counter",
        "kafka_server_brokertopicmetrics_bytesin_total 5",
        'kafka_server_brokertopicmetrics_bytesin_total{topic="t"} 3',
    ]
    assert text_of(confluent_lines(BYTES_IN, samples))[1:] == [
        "kafka_server_brokertopicmetrics_bytesinpersec 5",
        'kafka_server_brokertopicmetrics_bytesinpersec{topic="t"} 3',
    ]


def test_percent_is_a_share() -> None:
    assert text_of(jmx_lines(IDLE, [(NO_TAGS, 0.5)]))[1:] == [
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent 0.5"
    ]
    assert (
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate 0.5"
        in text_of(confluent_lines(IDLE, [(NO_TAGS, 0.5)]))
    )


def test_times_have_a_count_and_quantiles_and_no_sum() -> None:
    times = Distribution(7, 2.0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.5])

    lines = text_of(jmx_lines(TOTAL, [(Tags(("request", "Produce")), times)]))

    name = "kafka_network_requestmetrics_totaltimems"
    assert lines[:2] == [
        f"# TYPE {name}_count counter",
        f'{name}_count{{request="Produce"}} 7',
    ]
    assert f'{name}{{request="Produce",quantile="0.50"}} 1' in lines
    assert f'{name}{{request="Produce",quantile="0.999"}} 6.5' in lines
    assert attributes(TOTAL, times)["999thPercentile"] == 6.5


def test_names_of_objects_are_kafkas() -> None:
    tags = Tags(("listener", "PLAINTEXT"), ("networkProcessor", "0"))

    assert object_name(BYTES_IN, NO_TAGS) == (
        "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec"
    )
    assert object_name(CONNECTIONS, tags) == (
        "kafka.server:type=socket-server-metrics,listener=PLAINTEXT,networkProcessor=0"
    )
    assert attributes(CONNECTIONS, 4) == {"connection-count": 4}
    assert object_name(ISR, Tags(("topic", "a,b"))) == (
        'kafka.cluster:type=Partition,name=UnderMinIsr,topic="a,b"'
    )


def test_labels_that_were_made_before_are_the_same() -> None:
    tags = Tags(("group", 'a"\n'), ("topic", "t"))
    made = Tags.of_labels(tags.pairs, f"{label('group', tags.pairs[0][1])},{label('topic', 't')}")

    assert (made.pairs, made.text) == (tags.pairs, tags.text)


def test_metric_without_samples_is_absent() -> None:
    assert list(plain_lines("a", "gauge", "A.", [])) == []
    assert list(jmx_lines(TOTAL, [])) == []


def test_long_text_comes_in_pieces() -> None:
    pieces = list(plain_lines("a", "gauge", "A.", ((NO_TAGS, 1) for _ in range(2500))))

    assert len(pieces) == 3
    assert "".join(pieces).count("\n") == 2502
