"""Names that may follow ``kafka.`` in an option, and the format of their values.

A name in neither list is most likely misspelt and gets a warning. Most have no effect: there is no
consumer group, no buffer of single records and no interceptor here. A value that no client would
take is rejected as well.
"""

import difflib
import re
from collections.abc import Mapping

JAVA_CLIENT = frozenset(
    """
acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter
auto.offset.reset batch.size bootstrap.servers buffer.memory check.crcs client.dns.lookup
client.id client.rack compression.gzip.level compression.lz4.level compression.type
compression.zstd.level connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms
enable.auto.commit enable.idempotence enable.metrics.push exclude.internal.topics
fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
group.remote.assignor heartbeat.interval.ms interceptor.classes isolation.level key.deserializer
key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
max.partition.fetch.bytes max.poll.interval.ms max.poll.records max.request.size
metadata.max.age.ms metadata.max.idle.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms
partition.assignment.strategy partitioner.adaptive.partitioning.enable
partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys
receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config
sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes
session.timeout.ms socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
ssl.truststore.password ssl.truststore.type transaction.timeout.ms transactional.id
value.deserializer value.serializer
""".split()
)

LIBRDKAFKA = frozenset(
    """
ssl.ca.location ssl.certificate.location ssl.key.location sasl.username sasl.password
sasl.mechanisms enable.ssl.certificate.verification debug statistics.interval.ms
message.max.bytes queue.buffering.max.ms batch.num.messages socket.timeout.ms
""".split()
)

KNOWN_SETTINGS = JAVA_CLIENT | LIBRDKAFKA


def doubt(name: str, prefix: str = "") -> str | None:
    """A hint about an unknown config name; None if a client knows it. prefix: what was written
    before it.
    """
    if name in KNOWN_SETTINGS:
        return None
    matches = difflib.get_close_matches(name, KNOWN_SETTINGS, 1)
    hint = f"; did you mean {prefix}{matches[0]}?" if matches else ""
    return f"unknown client setting {prefix}{name}{hint}"


# Suffixes of names whose values are integers.
_WHOLE = (
    *(".ms", ".bytes", ".records", ".size", ".memory", ".seconds", "num.samples"),
    *("max.in.flight.requests.per.connection", "retries", "batch.num.messages"),
    *("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
)
_TRUE_OR_FALSE = frozenset(
    """
allow.auto.create.topics auto.include.jmx.reporter check.crcs enable.auto.commit
enable.idempotence enable.metrics.push exclude.internal.topics
enable.ssl.certificate.verification partitioner.adaptive.partitioning.enable
partitioner.ignore.keys sasl.oauthbearer.header.urlencode
""".split()
)
# -1 has a meaning: what the system has, or a level that the codec chooses.
_MAY_BE_NEGATIVE = re.compile(r"(send|receive)\.buffer\.bytes|compression\..+\.level")


def wrong_value(name: str, value: str) -> str | None:
    """The problem of a config's value; None if a client would accept it. Words that are specific to
    one config are checked where it is used.
    """
    text = value.strip()
    if name in _TRUE_OR_FALSE:
        fits = text.lower() in ("true", "false")
        return None if fits else f"{name} is {value!r}: write true or false"
    if name not in KNOWN_SETTINGS or not name.endswith(_WHOLE):
        return None
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        return f"{name} is {value!r}: write a whole number"
    if int(text) < 0 and not _MAY_BE_NEGATIVE.fullmatch(name):
        return f"{name} is {value}, but must not be negative: write 0 or more"
    return None


def fetch_bytes_max(settings: Mapping[str, str], default: int) -> int:
    """The maximum of a fetch: ``default``, or less if configured. Whole batches are returned in any
    case.
    """
    given = (settings.get(name) for name in ("max.partition.fetch.bytes", "fetch.max.bytes"))
    return min([default, *(max(1, int(one)) for one in given if one is not None)])
