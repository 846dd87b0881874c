"""Our definitions against Kafka's message specifications of 3.9 and 4.3, field by field.

Kafka's jars hold them. They are fetched once from Maven Central into ``.cache``.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import PurePath
from typing import Any

import pytest
from support.network.codec_samples import message_classes, record_classes, versions_of
from support.running.in_one import in_one

from kbroker.coordinator.records import offsets_topic, transaction_topic
from kbroker.protocol import api
from kbroker.protocol.message import NEVER
from kbroker.protocol.messages import consumer_protocol, headers
from kbroker.protocol.primitives import NO_UUID
from kbroker.protocol.schema import LAST, Field, StructSchema, top_level_names
from perf.maven import ROOT, fetch_jar

# Sets of specifications, the newest last, and the jars that hold them.
JARS = {
    "messages 3.9": ["kafka-clients:3.9.1"],
    "messages 4.3": ["kafka-clients:4.3.0"],
    "records 4.3": ["kafka-group-coordinator:4.3.0", "kafka-transaction-coordinator:4.3.0"],
}
# Kinds of groups that kbroker does not have.
OTHER_GROUPS = ("ShareGroup", "StreamsGroup")

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]  # of the first test, which may fetch

# Tags of our own (decision 0037).
OWN_TAG_FIRST = 10_000

Specs = dict[str, dict[str, Any]]

# The KRaft quorum's own APIs: kbroker is not a member of one.
QUORUM_KEYS = {52, 53, 54, 59, 70, 73, 82}
# The name of version 0 of key 74 in Kafka 3.9, and its name since.
RENAMED = {
    "ListClientMetricsResources": "ListConfigResources",
    "ClientMetricsResource": "ConfigResource",
    '"Name"': '"ResourceName"',
}
ZERO = {"string": "", "bool": False, "bytes": b"", "uuid": NO_UUID, "float64": 0.0, "records": None}


def read_spec(name: str, text: str) -> Any:
    text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    if name.startswith("ListClientMetricsResources"):
        for old, new in RENAMED.items():
            text = text.replace(old, new)
    return json.loads(re.sub(r"(?<=[,{}\[\]\"])\s*//.*$", "", text, flags=re.M))


@pytest.fixture(scope="module")
def files() -> Specs:
    """All specifications of each set, by file name."""
    found: Specs = {}
    for part, artifacts in JARS.items():
        found[part] = {}
        for artifact in artifacts:
            jar = fetch_jar(f"org.apache.kafka:{artifact}", ROOT / ".cache" / "specifications")
            with zipfile.ZipFile(jar) as archive:
                for path in map(PurePath, archive.namelist()):
                    if path.match("common/message/*.json"):
                        text = archive.read(str(path)).decode()
                        found[part][path.stem] = read_spec(path.name, text)
    return found


@pytest.fixture(scope="module")
def specs(files: Specs) -> Specs:
    """The messages of each set that kbroker defines, under their names in 4.3."""
    wanted = {cls.__name__ for cls in message_classes()}
    known = {
        part: {
            spec["name"]: spec
            for spec in every.values()
            if spec["name"] in wanted and versions(spec["validVersions"])
        }
        for part, every in files.items()
    }
    drop_early_access(known["messages 3.9"])
    return known


def versions(text: str | None) -> tuple[int, int] | None:
    if text is None or text == "none":
        return None
    if text.endswith("+"):
        return int(text[:-1]), LAST
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def snake_case(name: str) -> str:
    name = name.replace("KRaft", "Kraft")
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def drop_early_access(specs: dict[str, Any]) -> None:
    """Remove the last version of messages that were unstable in Kafka 3.9; it is gone or changed in
    4.3.
    """
    for name in [name for name, spec in specs.items() if spec.get("latestVersionUnstable")]:
        first, last = versions(specs[name]["validVersions"])
        for each in (name, name.replace("Request", "Response")):
            specs[each]["validVersions"] = f"{first}-{last - 1}"
            if last == first:
                del specs[each]


# Requests of kbrokers to each other have none (decision 0034).
OWN_API_FIRST = 20_000
CLASSES = {cls.__name__: cls for cls in message_classes() if (cls.API_KEY or 0) < OWN_API_FIRST}


def of_message(name: str, specs: Specs) -> list[dict[str, Any]]:
    """Its specifications, the oldest first; there is at least one."""
    found = [known[name] for known in specs.values() if name in known]
    assert found
    return found


def default_of(field: dict[str, Any]) -> Any:
    """Read a default of the specification, in the form kbroker has it."""
    kind, text = field["type"], field.get("default")
    tagged_or_null = kind[0].isupper()
    if text == "null" or tagged_or_null or ("default" in field and text is None):
        return None
    if kind.startswith("[]"):
        return []
    if text is None or kind == "uuid":
        return ZERO.get(kind, 0)
    if kind == "bool":
        return text in (True, "true")
    if kind == "string":
        return text
    return float(text) if kind == "float64" else int(str(text), 0)


def spec_layout(spec: dict[str, Any], fields: list[Any], version: int) -> list[Any]:
    """The wire layout of one version according to the specification, in order."""
    shared = {struct["name"]: struct["fields"] for struct in spec.get("commonStructs", [])}
    layout = []
    for field in fields:
        first, last = versions(field.get("versions") or field["taggedVersions"]) or (1, 0)
        if not first <= version <= last:
            continue
        nullable = versions(field.get("nullableVersions")) or (1, 0)
        tagged = versions(field.get("taggedVersions")) or (1, 0)
        inner, kind = None, field["type"].removeprefix("[]")
        if kind[0].isupper():
            inner = spec_layout(spec, field.get("fields") or shared[kind], version)
        layout.append(
            (
                snake_case(field["name"]),
                field["type"],
                nullable[0] <= version <= nullable[1],
                int(field["tag"]) if tagged[0] <= version <= tagged[1] else None,
                default_of(field),
                field.get("flexibleVersions") == "none",
                inner,
            )
        )
    return layout


def our_layout(struct: StructSchema, version: int) -> list[Any]:
    layout = []
    for field in struct.fields:
        if field.in_version(version) and (field.tag or 0) < OWN_TAG_FIRST:
            layout.append(
                (
                    field.name,
                    "[]" * field.is_array + field.type,
                    field.nullable_in(version),
                    field.tag,
                    field.default,
                    field.classic,
                    our_layout(field.struct, version) if field.struct else None,
                )
            )
    return layout


@in_one("name", sorted(CLASSES))
def test_every_version_has_the_fields_of_the_specifications(name, specs):
    for spec in of_message(name, specs):
        first, last = versions(spec["validVersions"])
        for version in range(first, last + 1):
            ours = our_layout(CLASSES[name].SCHEMA.root, version)

            assert ours == spec_layout(spec, spec["fields"], version), version


@in_one("name", sorted(CLASSES))
def test_range_is_the_union_of_both_specifications(name, specs):
    found = of_message(name, specs)
    ranges = [versions(spec["validVersions"]) for spec in found]
    flexible = [(versions(spec["flexibleVersions"]) or (NEVER,))[0] for spec in found]

    expected = min(first for first, _ in ranges), max(last for _, last in ranges)
    assert CLASSES[name].VERSIONS == expected
    assert {CLASSES[name].FIRST_FLEXIBLE} == set(flexible)
    key = CLASSES[name].API_KEY
    if CLASSES[name] not in record_classes():  # there "apiKey" is the number of a record type
        assert {key} == {spec.get("apiKey") for spec in found}


def ignorable_fields(spec: dict[str, Any]) -> dict[tuple[str, str], bool]:
    """Map (struct, field) to whether it may be dropped when a version lacks it."""
    found = {}

    def walk(struct: str, fields: list[Any]) -> None:
        for field in fields:
            ignorable = field.get("ignorable", False) in (True, "true")
            found[struct, snake_case(field["name"])] = ignorable
            walk(field["type"].removeprefix("[]"), field.get("fields", []))

    walk("", spec["fields"])
    for struct in spec.get("commonStructs", []):
        walk(struct["name"], struct["fields"])
    return found


@in_one("name", sorted(CLASSES))
def test_ignorable_fields_are_those_of_the_newest_specification(name, specs):
    expected: dict[tuple[str, str], bool] = {}
    for spec in of_message(name, specs):
        expected |= ignorable_fields(spec)
    schema = CLASSES[name].SCHEMA
    rows = [("", field) for field in schema.root.fields]
    of_ours = {
        field.struct.name
        for field in schema.root.fields
        if field.struct and (field.tag or 0) >= OWN_TAG_FIRST
    }
    for struct in schema.structs.values():
        if struct.name not in of_ours:
            rows += [(struct.name, field) for field in struct.fields]
    ours = {
        (struct_name, field.name): field.ignorable
        for struct_name, field in rows
        if (field.tag or 0) < OWN_TAG_FIRST
    }

    assert ours == expected | IGNORABLE_HERE.get(name, {})


IGNORABLE_HERE = {
    # Version 0 of the request header has no client id; Kafka 4.3 has no version 0.
    "RequestHeader": {("", "client_id"): True},
    # Kafka 4.3 writes version 1; a cluster of brokers of version 2.7 reads version 0 only.
    "TransactionLogValue": {
        ("", "previous_producer_id"): True,
        ("", "next_producer_id"): True,
        ("", "next_producer_epoch"): True,
        ("", "client_transaction_version"): True,
    },
}


def test_every_client_facing_message_is_defined(files):
    keys = {
        spec["apiKey"]
        for part in ("messages 3.9", "messages 4.3")
        for name, spec in files[part].items()
        if name.endswith("Request")
    }

    ours = {int(key) for key in api.ApiKey if key < OWN_API_FIRST}
    assert ours == keys - QUORUM_KEYS


@in_one("name", sorted(CLASSES))
def test_definition_is_written_in_one_piece(name):
    """Versions are legal, and values looked up at import agree with the parsed definition."""
    cls = CLASSES[name]

    def check(field: Field) -> None:
        first, last = field.versions
        assert first <= last
        assert first <= cls.VERSIONS[1], field.name
        assert field.tag is None or first >= cls.FIRST_FLEXIBLE, field.name

    for struct in (cls.SCHEMA.root, *cls.SCHEMA.structs.values()):
        for field in struct.fields:
            check(field)
    assert list(cls.__slots__) == [field.name for field in cls.SCHEMA.root.fields]
    assert top_level_names(cls.FIELDS) == list(cls.__slots__)
    assert list(versions_of(cls))


def test_classes_without_key_are_the_schemas_inside_other_messages():
    without = {cls for cls in message_classes() if cls.API_KEY is None}

    assert without == {
        consumer_protocol.ConsumerProtocolAssignment,
        consumer_protocol.ConsumerProtocolSubscription,
        headers.RequestHeader,
        headers.ResponseHeader,
        *record_classes(),
    }


@pytest.mark.parametrize(
    ("records", "topic"),
    [(offsets_topic.RECORDS, "offsets"), (transaction_topic.RECORDS, "transactions")],
)
def test_record_types_have_the_numbers_and_pairs_of_the_specification(records, topic, specs):
    known = specs["records 4.3"]
    for key, value in zip(records.classes()[::2], records.classes()[1::2], strict=True):
        number = records.encode(key(), None)[0][:2]
        assert int.from_bytes(number, "big") == known[key.__name__]["apiKey"]
        assert known[value.__name__]["apiKey"] == known[key.__name__]["apiKey"]
        assert value.__name__ == key.__name__.removesuffix("Key") + "Value"


def test_every_record_type_is_defined(files):
    names = {name for name in files["records 4.3"] if not name.startswith(OTHER_GROUPS)}

    assert {cls.__name__ for cls in record_classes()} == names
