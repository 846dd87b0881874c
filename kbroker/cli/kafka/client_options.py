"""Settings of a client as console tools and performance tests take them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.cli.kafka.options import Given, WrongUse
from kbroker.cli.kafka.running import pairs, properties_of


def client_settings(given: Given, config: str, prop: str) -> dict[str, str]:
    """Those of a file, and above them those of ``key=value`` options."""
    path = given.one(config)
    settings = properties_of(path) if path else {}
    return settings | pairs(given.all(prop))


def renamed(given: Given, old: str, new: str, said: str) -> str:
    """The one of two names that is given; both are wrong, the older one is warned of on stdout, as
    Kafka's tools do.
    """
    if given.count((old, new)) == 2:
        raise WrongUse(f"Options --{new} and --{old} cannot be specified together.")
    if old in given:
        print(said)
        return old
    return new


def known_only(settings: Mapping[str, str], rows: Iterable[str]) -> dict[str, str]:
    """Without those that this client does not have: Java's clients only warn of them."""
    from kbroker.client.connections.security import SETTINGS

    known = {*rows, *SETTINGS}
    classes = {"key.serializer", "value.serializer", "key.deserializer", "value.deserializer"}
    return {
        name: value for name, value in settings.items() if name in known and name not in classes
    }


def log_to_stderr() -> None:
    """What the client warns of."""
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s"
    )


def merged(settings: dict[str, Any], given: Given, options: Mapping[str, str]) -> None:
    """Options above what is set, and their defaults below. options: setting -> option."""
    for name, option in options.items():
        if option in given or name not in settings:
            settings[name] = given.all(option)[-1]
