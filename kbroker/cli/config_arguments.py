"""``NAME=VALUE`` arguments that set configs, with names checked before anything is sent."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from kbroker.cli.arguments import Usage, nearest


def add_settings(parser: argparse.ArgumentParser, *, unset: bool = False) -> None:
    """``-c NAME=VALUE`` and, with ``unset``, ``--unset NAME``; each may be repeated."""
    parser.add_argument(
        "-c",
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the topic, such as retention.ms=3600000; may be repeated",
    )
    if unset:
        parser.add_argument(
            "--unset",
            action="append",
            default=[],
            metavar="NAME",
            help="a setting that follows the broker's again; may be repeated",
        )


def pairs(kind: str, given: Iterable[str]) -> dict[str, str]:
    """The settings of ``NAME=VALUE`` texts. kind: of the resource. Raises Usage."""
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise Usage(f"{text!r}: write NAME=VALUE")
        check_name(kind, name)
        settings[name] = value
    return settings


def check_name(kind: str, name: str) -> None:
    """Raises Usage for a name that no resource of this kind has."""
    known = _names(kind)
    if known is None or name in known or (kind == "broker" and _is_of_listener(name)):
        return
    meant = _of_topic(name) if kind == "topic" else None
    meant = meant or nearest(name, known)
    instead = f"did you mean {meant}?" if meant else f"there are {', '.join(sorted(known))}"
    raise Usage(f"no setting {name!r} of a {kind}: {instead}")


def _names(kind: str) -> Iterable[str] | None:
    """None if only the brokers know."""
    if kind == "topic":
        from kbroker.config.topic_keys import TOPIC_KEYS

        return TOPIC_KEYS.keys()
    if kind == "broker":
        from kbroker.config.broker_keys import BROKER_KEYS

        return BROKER_KEYS.keys()
    if kind == "group":
        from kbroker.config.group_config import GROUP_KEYS

        return GROUP_KEYS.keys()
    if kind == "client-metrics":
        return ("interval.ms", "match", "metrics")
    return None


def _of_topic(name: str) -> str | None:
    """The setting of a topic that this setting of a broker is the default of."""
    from kbroker.config.topic_keys import TOPIC_KEYS

    for key in TOPIC_KEYS.values():
        if name in {of_broker for of_broker, _ in key.server_keys}:
            return key.name
    return None


def _is_of_listener(name: str) -> bool:
    from kbroker.config.broker_keys import find_key

    return find_key(name) is not None
