#!/usr/bin/env python3
"""Generates documents, and constants for the extensions. ``--check`` only reports stale ones.

    tools/gen_docs.py            write what changed
    tools/gen_docs.py --check    write nothing; exit 1 if one is stale

Each is one row of ``DOCUMENTS``: its path and the function that gives its text. The text may depend
only on what is in the repository, not on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kbroker.cli.protocol_page import protocol_page  # noqa: E402
from kbroker.client.admin.admin_settings import (  # noqa: E402
    SETTINGS as ADMIN_SETTINGS,
)
from kbroker.client.connections.security import SETTINGS as SECURITY_SETTINGS  # noqa: E402
from kbroker.client.consumer.consumer_settings import (  # noqa: E402
    SETTINGS as CONSUMER_SETTINGS,
)
from kbroker.client.producer.producer_settings import (  # noqa: E402
    SETTINGS as PRODUCER_SETTINGS,
)
from kbroker.client.settings.client_settings import ClientSetting  # noqa: E402
from kbroker.config.broker_keys import SECTIONS  # noqa: E402
from kbroker.config.group_config import GROUP_KEYS  # noqa: E402
from kbroker.config.key import (  # noqa: E402
    BUILT,
    DOUBLE_MAX,
    INT_MAX,
    LATER,
    LONG_MAX,
    TYPE_NAMES,
    UNUSED,
    Computed,
    Key,
)
from kbroker.config.topic_keys import TOPIC_KEYS  # noqa: E402
from kbroker.errors import ErrorCode  # noqa: E402
from kbroker.exposition.absent_mbeans import ABSENT  # noqa: E402
from kbroker.handlers import dispatch  # noqa: E402, F401  all handlers, for what is announced
from kbroker.handlers.registry import announced  # noqa: E402
from kbroker.legacy.producer_config import (  # noqa: E402
    SETTINGS as OLD_PRODUCER_SETTINGS,
)
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import (  # noqa: E402
    SETTINGS as ZOOKEEPER_CONSUMER_SETTINGS,
)
from kbroker.metrics.catalog import API_WIDTH, METRICS  # noqa: E402
from kbroker.protocol.api import ApiKey  # noqa: E402
from perf import results_pages  # noqa: E402
from tools import kafka_tool_files, layout_sources, message_stubs  # noqa: E402
from tools.command_line_page import command_line  # noqa: E402

# All settings of clients, by name.
CLIENT_SETTINGS = {
    *ADMIN_SETTINGS,
    *CONSUMER_SETTINGS,
    *OLD_PRODUCER_SETTINGS,
    *PRODUCER_SETTINGS,
    *SECURITY_SETTINGS,
    *ZOOKEEPER_CONSUMER_SETTINGS,
}

_METRICS_HEAD = """\
# Metrics

<!-- Written by tools/gen_docs.py from kbroker/metrics/catalog.py; change it there. -->

`http://<metrics.host>:<metrics.port>/metrics` has figures in Prometheus's text format, in families
of names that `metrics.names` chooses:

- `jmx`: what Prometheus' JMX exporter makes of Kafka's MBeans with its rules for Kafka 2, for
  Strimzi's dashboards and alert rules and most others for Kafka:
  `kafka_server_brokertopicmetrics_bytesin_total{topic}`,
  `kafka_network_requestmetrics_totaltimems{request,quantile}`.
- `exporter`: kafka_exporter's, for its dashboard, and Strimzi's for it:
  `kafka_topic_partition_current_offset{topic,partition}`.
- `native`: this broker's own, in the table below.
- `confluent`, on request: as `jmx`, but `kafka_server_brokertopicmetrics_bytesinpersec{topic}`, for
  Confluent's dashboards.
- `histograms`, on request: `kbroker_request_duration_seconds`, a histogram by API.

`/jmx` has the same figures as JSON, by the names of Kafka's MBeans; `?qry=kafka.server:*` selects
some. Its meters have rates as well (`MeanRate`, `OneMinuteRate`, `FiveMinuteRate`,
`FifteenMinuteRate`), made from what was counted between the requests for `/jmx`. In a cluster each
broker tells of the partitions that it leads, and the active controller of what belongs to no
broker. Quantiles and shares of idle time are those of the last `metrics.num.samples` times
`metrics.sample.window.ms`, quantiles with an error of at most 3 %. A figure that nobody measures is
absent, not 0. [Decision 0026](decisions/0026-metrics.md) says how
figures are kept, and where they differ from Kafka's.

## Lag

`kafka_consumergroup_lag` is how many records of a partition a group has not committed yet, for
groups of both protocols and for those that only commit offsets;
`kbroker_consumergroup_lag_seconds` is the age of the oldest of them, and 0 without any.
`kafka_consumergroup_lag_sum` and `kbroker_consumergroup_lag_max` are sum and maximum over a topic.
A broker tells of the groups that it coordinates, and of lag in partitions of which it has a
replica. For each scrape at most 1,000 ages are looked up that are not known from the last ones; the
others are absent until later ones. Beyond `metrics.group.partitions.max` committed offsets only the
figures of whole topics are told, in seconds that of the partition with the largest lag;
`kbroker_metrics_left_out` says of how many. `/groups` has
state, members and lag of each group as JSON.

Let Prometheus scrape all brokers, and leave `instance` of kafka_exporter's dashboard at *All*: each
series is told by one broker, of what it leads and coordinates; a page of any broker has
[all of them](cluster.md#the-whole-cluster-from-one-broker). Where a coordinator has no replica of a
partition, this is the lag: `max by (topic, partition) (kafka_topic_partition_current_offset) - on
(topic, partition) group_right kafka_consumergroup_current_offset`.

`kbroker top` shows processes, topics, clients, requests and groups of the broker on this machine,
also while it is stuck, `kbroker status --local` the same once, and `kbroker bundle` collects what a
report of a problem needs, without passwords. They read the broker's tables in `/dev/shm`:

- As the broker's user, or as root, without any setting.
- As another user: set `shared.memory.group=monitor` for the broker, whose user must be in that
  group, too, and run `kbroker top` as any user of the group.
- In a sidecar container: let it share the broker's `/dev/shm` (`docker run --ipc=container:broker`;
  in Kubernetes, an `emptyDir` of medium `Memory` at `/dev/shm` of both), as the same user or one of
  that group. Process ids, CPU and memory of processes of another container are not shown.

The tables take about 20 MiB of `/dev/shm`, and 3.7 MiB more for each further network process (with
`partition.table.slots` as it is). Where there is no room (Docker gives a container 64 MiB), a line
in the log says so, and only the broker's user and root can look at it. What a killed broker leaves
in `/dev/shm` goes at its next start; `kbroker top` names what is left until then. For a broker of
an ordinary user, systemd-logind removes these names when the user's last session ends: set
`RemoveIPC=no` in `logind.conf`, or use a system user. The broker itself does not notice.

`slow.request.log.ms` has slow requests logged with
their stages, `log.format=json` the whole log written as JSON with an event for each kind of line.

## What clients push

A subscription asks clients to push their own metrics (KIP-714); those of kbroker, of Java from 3.7
and of librdkafka from 2.5 do. `kafka-client-metrics.sh` and
`kafka-configs.sh --entity-type client-metrics` set them. It is announced to clients
whose connection is made while there is a subscription; others ask
for none until they connect again.

```
kbroker config set client-metrics rates metrics=org.apache.kafka.producer. interval.ms=10000
kbroker config set client-metrics one metrics=* match=client_id=billing.*
```

Each number becomes `kbroker_client_` with the rest of its name, such as
`kbroker_client_producer_record_send_rate`, with the labels `client_id`, `client_instance_id`,
`client_software_name` and `client_software_version`, and those of its own. Gauges, sums and
histograms (with up to 100 bounds; exponential ones with up to four for each doubling) are kept, up
to 500 series of a client and 5,000 of a network process, of which a histogram has one for each
bucket and two more; `kbroker_metrics_left_out` says how many were not. A push may have
`telemetry.max.bytes`, and eight times as many decompressed. A client that has not pushed for three
intervals is forgotten.

## Health

`/livez`, `/readyz`, `/readyz?for=writes` and `/healthz` are 200 if all is well with this broker,
else 503; `?verbose` lists the checks. `/health` says as JSON what is wrong. [health.md](health.md)
has what fails which, and how `kbroker health` and `kbroker doctor` speak of the cluster.

## This broker's own

Each value has a `process` label (`network-0`, `io-1`, ...); the broker's value is the sum over its
processes. Values of 0 are left out, but of what the alert rules and dashboards of
`kbroker generate` ask for. Counters never decrease while the broker runs, even when a
process is restarted. `kbroker_process_up` is 1 for each process that serves. `kbroker_topics_known`
is 0 while metrics of topics and groups are absent: the controller process has not said what
there is.

| Metric | Kind | Label | Meaning |
| --- | --- | --- | --- |"""

_ERROR_CODES_HEAD = """\
# Written by tools/gen_docs.py from kbroker/errors.py; change it there.

"""

_API_KEYS_HEAD = """\
# Written by tools/gen_docs.py from kbroker/protocol/api.py, the versions of the handlers and the
# width of a metric (kbroker/metrics/catalog.py); change it there.
#
# Of each API that is served: its key, the first and last version, and the first that is flexible.

"""

_PRODUCER_HEAD = """\
# Settings of the producer

<!-- Written by tools/gen_docs.py from kbroker/client/producer/producer_settings.py. -->

`kbroker.client.KafkaProducer` takes these ([docs/clients.md](clients.md) has examples) as a
dictionary under the names below, as keywords with `_` for `.`, or both. Names, defaults and
meanings are those of Java's producer 4.x; those of the producer of 0.8.2 that Java no longer has
are there, too. A setting that is not known is an error that names the nearest one; a value that is
not allowed is one, too. A setting without effect is accepted, and a warning is logged if it is set.

The settings of TLS and SASL are those of Java and of librdkafka:
"""

_CONSUMER_HEAD = """\
# Settings of the consumer

<!-- Written by tools/gen_docs.py from kbroker/client/consumer/consumer_settings.py. -->

`kbroker.client.KafkaConsumer` takes these ([docs/clients.md](clients.md) has examples) as a
dictionary under the names below, as keywords with `_` for `.`, or both. Names, defaults and
meanings are those of Java's consumer 4.x. A setting that is not known is an error that names the
nearest one; a value that is not allowed is one, too. A setting without effect is accepted, and a
warning is logged if it is set.

The settings of TLS and SASL are those of Java and of librdkafka:
"""

_OLD_PRODUCER_HEAD = """\
# Settings of the producer of Kafka 0.8

<!-- Written by tools/gen_docs.py from kbroker/legacy/producer_config.py. -->

`kbroker.legacy.Producer` takes these ([docs/clients.md](clients.md#the-clients-of-kafka-08)
has examples) as a dictionary under the names below, as keywords with `_` for `.`, or from a file of
properties (`ProducerConfig.from_file`). Names, defaults and meanings are those of Kafka 0.8.2; some
of 0.7 are there, too. All have an effect. A setting that is not known is an error that names the
nearest one; a value that is not allowed is one, too. `SyncProducer` takes `client.id`,
`request.required.acks`, `request.timeout.ms` and `send.buffer.bytes`.

For listeners with TLS or SASL, which are later than 0.8, there are the settings of Java and of
librdkafka:
"""

_ADMIN_HEAD = """\
# Settings of the admin client

<!-- Written by tools/gen_docs.py from kbroker/client/admin/admin_settings.py. -->

`kbroker.client.KafkaAdminClient` takes these ([docs/clients.md](clients.md) has examples) as a
dictionary under the names below, as keywords with `_` for `.`, or both. Names, defaults and
meanings are those of Java's admin client 4.x. A setting that is not known is an error that names
the nearest one; a value that is not allowed is one, too. A setting without effect is accepted, and
a warning is logged if it is set.

The settings of TLS and SASL are those of Java and of librdkafka:
"""

_ZOOKEEPER_CONSUMER_HEAD = """\
# Settings of the ZooKeeper consumer

<!-- Written by tools/gen_docs.py from kbroker/legacy/zookeeper_consumer. -->

`kbroker.legacy.zookeeper_consumer.ConsumerConfig` takes these
([docs/clients.md](clients.md#groups-by-zookeeper) has examples) as a dictionary under the names
below, as keywords with `_` for `.`, or from a file in Java's `.properties` format (`from_file`).
Names, defaults and meanings are those of the consumer of Kafka 0.8.2. A setting that is not known
is an error that names the nearest one; a value that is not allowed is one, too. All have their
effect.

Brokers with TLS and SASL are connected to with the settings of the other clients:
"""

_STATES = {BUILT: "built", LATER: "*later*", UNUSED: "*no effect*"}
_NO_BOUND = {INT_MAX, LONG_MAX, DOUBLE_MAX}

_CONFIGURATION_HEAD = """\
# Configuration

<!-- Written by tools/gen_docs.py from kbroker/config; change it there. -->

A broker reads one file in Java's `.properties` format, which `-c` names; without `-c` it starts
with the defaults. `make run` uses `config/server.properties`. Names and meanings are Apache
Kafka's, so a `server.properties` of Kafka works unchanged:

- An unknown setting is ignored, with a warning that suggests the closest known one.
- A value that is not allowed prevents the start; the error has the setting, the value and what is
  allowed.
- `--override key=value` on the command line takes precedence over the file; settings changed by a
  client (AlterConfigs) take precedence over both.

**State.** *built*: the setting does what it says. *later*: it is accepted, but its feature is not
built yet. *no effect*: it is accepted because Kafka has it, but there is nothing in kbroker that
it could change. At the start, a warning is logged for each setting of the last two kinds that is
not at its default.

**Changes.** *read-only*: a change needs a restart. *cluster-wide*: it can be changed while the
broker runs, for one broker or for all, by a client or by SIGHUP after editing the file.
*per-broker*: the same, but for one broker only.

**Types.** INT, LONG and SHORT are whole numbers of 32, 64 and 16 bits. A LIST is separated by
commas. A PASSWORD is never shown. A default of *no limit* is the type's largest number.
"""


def configuration() -> str:
    """docs/configuration.md: every setting of broker and topic."""
    lines = [_CONFIGURATION_HEAD]
    lines += ["## Broker settings", "", *_contents(), ""]
    for title, keys in SECTIONS:
        lines += [f"### {title}", "", *_table(keys), ""]
    lines += [
        "## Topic settings",
        "",
        "Set when a topic is created or at any time after. A topic without its own value follows",
        "the broker setting named with it.",
        "",
        *_table(TOPIC_KEYS.values()),
        "",
        "## Group settings",
        "",
        "Set at any time, even before the group exists. A group without its own value follows the",
        "broker setting named with it; values are limited to `group.consumer.min` and `max`.",
        "",
        *_table(GROUP_KEYS.values()),
        "",
        "## Differences from Kafka 2.7",
        "",
        "Every other default, type and range is Kafka's.",
        "",
        *_differences(),
    ]
    return "\n".join(lines) + "\n"


def _contents() -> list[str]:
    return [
        f"- [{title}](#{title.lower().replace(' ', '-').replace(chr(39), '')})"
        for title, _ in SECTIONS
    ]


def _table(keys: Iterable[Key]) -> list[str]:
    rows = [
        "| Setting | Meaning | Type | Default | Allowed | Importance | Changes | State |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key in keys:
        cells = (
            f"`{key.name}`",
            _meaning(key),
            TYPE_NAMES[key.type],
            _default(key),
            _allowed(key),
            key.importance.lower(),
            key.dynamic,
            _STATES[key.status],
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _meaning(key: Key) -> str:
    parts = [key.doc]
    if key.aliases:
        parts.append(f"Also written {', '.join(f'`{alias}`' for alias in key.aliases)}.")
    if key.server_keys:
        names = ", ".join(f"`{name}`" for name, _ in key.server_keys)
        parts.append(f"Broker setting: {names}.")
    if key.deviation:
        parts.append(f"**Differs from Kafka:** {key.deviation.rstrip('.')}.")
    return " ".join(parts)


def _default(key: Key) -> str:
    if isinstance(key.default, Computed):
        return f"*{key.default.text}*"
    if key.default is None:
        return "*unset*"
    if key.default in _NO_BOUND:
        return "*no limit*"
    text = key.format(key.default)
    return f"`{text}`" if text else "*empty*"


def _allowed(key: Key) -> str:
    """The allowed values of a key; empty if its type says it all."""
    parts = []
    if key.one_of is not None:
        parts.append(", ".join(f"`{word}`" for word in key.one_of))
    if key.low is not None and key.high is not None and key.high not in _NO_BOUND:
        parts.append(f"{key.low} to {key.high}")
    elif key.low is not None:
        parts.append(f"from {key.low}")
    elif key.high is not None:
        parts.append(f"up to {key.high}")
    if key.check is not None:
        parts.append(key.check.allowed)
    return "; ".join(parts)


def _differences() -> list[str]:
    all_keys = [*(key for _, keys in SECTIONS for key in keys), *TOPIC_KEYS.values()]
    return [
        f"- `{key.name}`: {key.deviation.rstrip('.')}."
        for key in sorted(all_keys, key=lambda key: key.name)
        if key.deviation
    ]


_ABSENT_HEAD = """
## Names of Kafka that are not here

What Kafka's pages on monitoring (2.7 and 4.3) name of a broker is in `/jmx`, but for:

| MBeans | Why, and what says it instead |
| --- | --- |"""


def metrics() -> str:
    """Every metric, in the order of the catalog."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {metric.label or '-'} | {metric.help} |"
        for metric in METRICS
    ]
    absent = [f"| {_shown_names(row.names)} | {row.reason} |" for row in ABSENT]
    return "\n".join([_METRICS_HEAD, *rows, _ABSENT_HEAD, *absent, ""])


def _shown_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def producer_settings() -> str:
    """docs/producer-settings.md: every setting of the producer."""
    return _client_settings(_PRODUCER_HEAD, PRODUCER_SETTINGS.values())


def consumer_settings() -> str:
    """docs/consumer-settings.md: every setting of the consumer."""
    return _client_settings(_CONSUMER_HEAD, CONSUMER_SETTINGS.values())


def old_producer_settings() -> str:
    """docs/old-producer-settings.md: every setting of the producer of 0.8."""
    return _client_settings(_OLD_PRODUCER_HEAD, OLD_PRODUCER_SETTINGS.values())


def admin_settings() -> str:
    """docs/admin-settings.md: every setting of the admin client."""
    return _client_settings(_ADMIN_HEAD, ADMIN_SETTINGS.values())


def zookeeper_consumer_settings() -> str:
    """docs/zookeeper-consumer-settings.md: every setting of the consumer of 0.8."""
    return _client_settings(_ZOOKEEPER_CONSUMER_HEAD, ZOOKEEPER_CONSUMER_SETTINGS.values())


def _client_settings(head: str, rows: Iterable[ClientSetting]) -> str:
    secure = ", ".join(f"`{name}`" for name in sorted(SECURITY_SETTINGS))
    lines = [head + f"{secure}.", ""]
    lines += [
        "| Setting | Meaning | Value | Default | Allowed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        meaning = row.text
        if row.no_effect:
            meaning += f" **No effect:** {row.no_effect}."
        value = (row.kind.__doc__ or "").partition(".")[0].partition("\n")[0]
        cells = (f"`{row.name}`", meaning, value, _client_default(row), _client_allowed(row))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _client_default(row: ClientSetting) -> str:
    if row.default is None or row.default == ():
        return "*unset*"
    if row.name == "acks":
        return "`all`"
    if isinstance(row.default, tuple):
        return ", ".join(f"`{one}`" for one in row.default)
    shown = str(row.default).lower() if isinstance(row.default, bool) else str(row.default)
    return f"`{shown}`" if shown else "*empty*"


def _client_allowed(row: ClientSetting) -> str:
    if row.one_of:
        return ", ".join(f"`{word}`" for word in row.one_of)
    if row.low is None:
        return ""
    no_bound = row.high is None or row.high in _NO_BOUND or row.high == LONG_MAX // 1000
    return f"from {row.low}" if no_bound else f"{row.low} to {row.high}"


def with_tables(name: str, **tables: Callable[[], str]) -> Callable[[], str]:
    """What gives a page with its tables, each between two comments; the first has its name."""

    def page() -> str:
        text = (ROOT / name).read_text(encoding="utf-8")
        for table, generate in tables.items():
            begin, end = f"<!-- table: {table} -->\n", "<!-- end of table -->\n"
            before, found, rest = text.partition(begin)
            if not found:
                raise LookupError(f"{name} has no place for the table {table}")
            text = f"{before}{begin}\n{generate()}\n\n{end}{rest.partition(end)[2]}"
        return text

    return page


_DECISIONS_HEAD = """\
# Decisions

<!-- Written by tools/gen_docs.py from the titles of the pages. -->

Choices that are hard to reverse: what was chosen, what was rejected, and what it costs. A page is
right for its day; [architecture.md](../architecture.md) says how things are now.

| | decision |
| --- | --- |
"""


def decisions() -> str:
    """docs/decisions/README.md: all of them by title."""
    rows = []
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        number, _, title = path.read_text("utf-8").partition("\n")[0].lstrip("# ").partition(": ")
        rows.append(f"| {number} | [{title}]({path.name}) |")
    return _DECISIONS_HEAD + "\n".join([*rows, ""])


def error_codes() -> str:
    """Error codes for Cython. Without NONE: it is 0, and too generic a name."""
    rows = [f"    {code.name} = {int(code)}" for code in ErrorCode if code != ErrorCode.NONE]
    return "\n".join((_ERROR_CODES_HEAD + "cdef enum:", *rows, ""))


def api_keys() -> str:
    """API keys for Cython, and which versions of each are served and flexible."""
    rows = []
    for key, first, last in announced():
        api = ApiKey(key)
        rows += [
            f"    API_{api.name} = {key}",
            f"    {api.name}_FIRST = {first}",
            f"    {api.name}_LAST = {last}",
            f"    {api.name}_FLEXIBLE = {api.first_flexible}",
        ]
    rows.append(f"    API_WIDTH = {API_WIDTH}")
    return "\n".join((_API_KEYS_HEAD + "cdef enum:", *rows, ""))


DOCUMENTS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("docs/admin-settings.md", admin_settings),
    ("docs/command-line.md", command_line),
    ("docs/configuration.md", configuration),
    ("docs/consumer-settings.md", consumer_settings),
    ("docs/decisions/README.md", decisions),
    ("docs/metrics.md", metrics),
    ("docs/old-producer-settings.md", old_producer_settings),
    ("docs/producer-settings.md", producer_settings),
    ("docs/protocol.md", lambda: protocol_page(announced())),
    ("docs/zookeeper-consumer-settings.md", zookeeper_consumer_settings),
    ("ext/kbroker/_ext/base/api_keys.pxd", api_keys),
    ("ext/kbroker/_ext/base/error_codes.pxd", error_codes),
    ("ext/kbroker/_ext/shared/layouts.pxd", layout_sources.declarations),
    ("ext/kbroker/_ext/shared/layouts.pyx", layout_sources.offsets_module),
    (
        "perf/README.md",
        with_tables(
            "perf/README.md", areas=results_pages.areas_table, missed=results_pages.missed_table
        ),
    ),
    ("perf/figures.md", results_pages.figures_page),
    ("pyproject.toml", kafka_tool_files.project),
    ("README.md", with_tables("README.md", figures=results_pages.five_figures)),
    *message_stubs.documents(ROOT),
)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Exit code 0, or 1 if ``--check`` found something stale."""
    parser = argparse.ArgumentParser(description="Write what follows from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if one is stale")
    check = parser.parse_args(arguments).check
    stale = 0
    for name, generate in DOCUMENTS:
        path, text = root / name, generate()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if check:
            print(f"{name} is stale; run tools/gen_docs.py", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    for name in kafka_tool_files.stale_links(root, mend=not check):
        stale += 1
        print(f"bin/{name} is stale; run tools/gen_docs.py" if check else f"wrote bin/{name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
