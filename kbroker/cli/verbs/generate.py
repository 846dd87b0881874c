"""``kbroker generate``: what Prometheus and Grafana need to watch brokers, and what writers of
clients need to speak to them.
"""

from __future__ import annotations

import argparse
import json

from kbroker.cli.arguments import Action
from kbroker.cli.monitoring import DASHBOARDS, JOB, alert_rules, dashboard, prometheus_config

_EPILOG_CONFIG = """\
Each broker serves metrics at metrics.host and metrics.port, which is 127.0.0.1:9644 unless its
configuration says otherwise. Set metrics.host to an address that Prometheus reaches."""


def _describe_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets", nargs="*", default=["127.0.0.1:9644"], metavar="HOST:PORT",
        help="where brokers serve metrics; 127.0.0.1:9644",
    )  # fmt: skip
    _add_job(parser, "the name of the job; kafka", JOB)


def _config(options: argparse.Namespace) -> None:
    print(prometheus_config(options.targets, options.job), end="")


def _add_job(parser: argparse.ArgumentParser, text: str, default: str | None) -> None:
    parser.add_argument("--job", default=default, metavar="NAME", help=text)


def _describe_dashboard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dashboard", nargs="?", default="broker", choices=tuple(DASHBOARDS), metavar="NAME",
        help=f"{', '.join(DASHBOARDS)}; broker",
    )  # fmt: skip
    _add_job(parser, "show only what Prometheus' job of this name has scraped", None)


def _dashboard(options: argparse.Namespace) -> None:
    print(json.dumps(dashboard(options.dashboard, options.job), indent=1))


def _rules(options: argparse.Namespace) -> None:
    print(alert_rules(options.job), end="")


def _describe_rules(parser: argparse.ArgumentParser) -> None:
    _add_job(parser, "only for what Prometheus' job of this name has scraped", None)


def _describe_protocol(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("markdown", "json"), default="markdown",
        help="a page, or all definitions as a JSON document (markdown)",
    )  # fmt: skip


def _protocol(options: argparse.Namespace) -> None:
    from kbroker.cli.protocol_page import protocol_data, protocol_page
    from kbroker.handlers import dispatch  # noqa: F401  all handlers, for what is announced
    from kbroker.handlers.registry import announced

    if options.output == "json":
        print(json.dumps(protocol_data(announced()), indent=1))
    else:
        print(protocol_page(announced()), end="")


ACTIONS = {
    "prometheus-config": Action(
        "a configuration of Prometheus that scrapes brokers",
        _describe_config,
        _config,
        epilog=_EPILOG_CONFIG,
    ),
    "alert-rules": Action("alert rules for Prometheus", _describe_rules, _rules),
    "grafana-dashboard": Action("a dashboard for Grafana", _describe_dashboard, _dashboard),
    "protocol": Action(
        "the wire protocol, for a client in another language", _describe_protocol, _protocol
    ),
}
