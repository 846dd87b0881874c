"""Message handlers and rebalance listeners of a mirror: Python under a dotted path."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from kbroker.client.errors import ClientError, SettingRefused

Handler = Callable[[Any], Iterable[Any] | None]


class HandlerFailed(ClientError):
    """A message handler has raised an error: nothing from this record on counts as copied."""

    def __init__(self, topic: str, partition: int, offset: int, why: str) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.why = why
        super().__init__(
            f"the message handler failed at {topic}-{partition} offset {offset}: {why}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.topic, self.partition, self.offset, self.why)


def loaded(option: str, path: str, arguments: str | None) -> Any:
    """What a path stands for; a class is called, with ``arguments`` if there are any. Raises
    SettingRefused.
    """
    module, _, attribute = path.strip().replace(":", ".").rpartition(".")
    try:
        value = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingRefused(option, f"cannot load {path}: {error}") from error
    if not isinstance(value, type):
        if arguments is not None:
            raise SettingRefused(option, f"{path} is no class, and takes no arguments")
        return value
    try:
        return value() if arguments is None else value(arguments)
    except Exception as error:
        why = f"{path} raised {type(error).__name__}: {error}"
        raise SettingRefused(option, why) from error


def message_handler(path: str, arguments: str | None) -> Handler:
    """A callable of a ``ConsumerRecord`` that returns records to send, or an object whose method
    ``handle`` is one.
    """
    handler = loaded("message.handler", path, arguments)
    handle = getattr(handler, "handle", handler)
    if not callable(handle):
        raise SettingRefused("message.handler", f"{path} has no method handle, and is no function")
    return handle  # type: ignore[no-any-return]


def rebalance_listener(path: str, arguments: str | None) -> Any:
    """An object with methods of ``RebalanceListener``."""
    listener = loaded("consumer.rebalance.listener", path, arguments)
    if not any(
        hasattr(listener, f"on_partitions_{what}") for what in ("assigned", "revoked", "lost")
    ):
        raise SettingRefused(
            "consumer.rebalance.listener",
            f"{path} has none of on_partitions_assigned, on_partitions_revoked, on_partitions_lost",
        )
    return listener
