"""What is generated for Prometheus and Grafana."""

from __future__ import annotations

import json

import pytest

from kbroker.cli.command import main
from kbroker.cli.monitoring import (
    DASHBOARDS,
    RULES,
    alert_rules,
    dashboard,
    of_job,
    prometheus_config,
)

pytestmark = pytest.mark.unit


def test_rules_say_what_to_do() -> None:
    names = [rule.alert for rule in RULES]

    assert len(set(names)) == len(names)
    assert all(len(rule.text.split(". ")) > 1 or ";" in rule.text for rule in RULES)
    assert alert_rules().count("- alert: ") == len(RULES)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_of_a_dashboard_do_not_overlap(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "grafana-dashboard", name]) == 0

    made = json.loads(capsys.readouterr().out)
    assert made == dashboard(name)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in made["panels"]]
    assert len(set(places)) == len(places)


def test_configuration_has_the_job_of_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "prometheus-config", "a:9644", "b:9644"]) == 0

    assert capsys.readouterr().out == prometheus_config(["a:9644", "b:9644"])
    assert '- targets: ["a:9644", "b:9644"]' in prometheus_config(["a:9644", "b:9644"])
    assert any('job="kafka"' in rule.expr for rule in RULES)


def test_job_may_have_any_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "alert-rules", "--job", "main"]) == 0
    rules = capsys.readouterr().out
    assert main(["generate", "prometheus-config", "--job", "main"]) == 0
    config = capsys.readouterr().out
    assert main(["generate", "grafana-dashboard", "groups", "--job", "main"]) == 0
    shown = json.loads(capsys.readouterr().out)

    assert 'job_name: "main"' in config
    assert 'job=\\"kafka\\"' not in rules
    exprs = [target["expr"] for panel in shown["panels"] for target in panel["targets"]]
    assert all('job="main"' in expr for expr in exprs)


def test_expression_of_a_job_selects_its_series_alone() -> None:
    assert of_job('up{job="kafka"} == 0', "a") == 'up{job="a"} == 0'
    assert of_job("sum by (topic) (rate(kafka_log_log_size{}[5m]))", "a") == (
        'sum by (topic) (rate(kafka_log_log_size{job="a"}[5m]))'
    )
    assert of_job('kafka_x{topic=""} / kbroker_y', 'q"') == (
        'kafka_x{job="q\\"",topic=""} / kbroker_y{job="q\\""}'
    )


def test_unknown_dashboard_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "grafana-dashboard", "brokers"]) == 2
    assert "broker" in capsys.readouterr().err
