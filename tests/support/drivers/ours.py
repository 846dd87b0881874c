"""kbroker's own producer; others read what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.drivers import WAIT_S, ClientError, Message

from kbroker.client import KafkaProducer
from kbroker.client import errors as client_errors


class OurProducer:
    name = "kbroker"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int | None = 0,
        codec: str = "none",
        **config: Any,
    ) -> list[int]:
        """The offsets."""
        with KafkaProducer(
            bootstrap_servers=self.bootstrap, compression_type=codec, **config
        ) as producer:
            sent = [
                producer.send(
                    topic,
                    message.value,
                    message.key,
                    list(message.headers),
                    partition,
                    message.timestamp_ms,
                )
                for message in messages
            ]
            producer.flush(WAIT_S)
            try:
                return [future.result(WAIT_S).offset for future in sent]
            except client_errors.ClientError as raised:
                raise ClientError(int(raised.code or -1), str(raised)) from raised
