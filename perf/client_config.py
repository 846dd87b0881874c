"""Client configs as Kafka's tools accept them, for librdkafka, which names some differently."""

from pathlib import Path

# Java client only: they name Java classes or pools that librdkafka does not have.
IGNORED = {
    "key.serializer",
    "value.serializer",
    "key.deserializer",
    "value.deserializer",
    "partitioner.class",
    "metric.reporters",
}
# None: librdkafka has no such setting and needs none.
RENAMED: dict[str, str | None] = {
    "max.request.size": "message.max.bytes",
    "max.poll.records": None,
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
}


def read_properties(path: Path | str) -> dict[str, str]:
    """The key=value lines of a Java properties file; comments and empty lines are skipped."""
    found: dict[str, str] = {}
    for line in Path(path).read_text().splitlines():
        text = line.strip()
        if text and text[0] not in "#!":
            key, _, value = text.partition("=")
            found[key.strip()] = value.strip()
    return found


def parse_pairs(pairs: list[str]) -> dict[str, str]:
    """key=value arguments. Raises ValueError for one without a key or an equals sign."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{pair!r} is not key=value")
        found[key] = value
    return found


def is_plaintext(settings: dict[str, str]) -> bool:
    """Whether the client sends its requests without TLS and authentication."""
    return settings.get("security.protocol", "plaintext").lower() == "plaintext"


def for_librdkafka(settings: dict[str, str]) -> dict[str, str]:
    """Java's names and units converted to librdkafka's, which will report unknown names itself."""
    out: dict[str, str] = {}
    for key, value in settings.items():
        if key in IGNORED:
            continue
        name = RENAMED.get(key, key)
        if key == "buffer.memory":
            out["queue.buffering.max.kbytes"] = str(max(1, int(value) // 1024))
        elif name is not None:
            out[name] = value
    return out
