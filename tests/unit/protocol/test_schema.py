"""The notation of message definitions."""

import pytest

from kbroker.protocol.schema import LAST, SchemaError, parse, parse_versions, top_level_names

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"), [("4", (4, 4)), ("4-8", (4, 8)), ("0+", (0, LAST)), ("12+", (12, LAST))]
)
def test_versions_are_inclusive_ranges(text, expected):
    assert parse_versions(text) == expected


def test_definition_is_parsed_into_fields_and_structs():
    schema = parse(
        "Message",
        """
        brokers     []Broker  0+
          node_id   int32     0+            # a comment
          rack      string    1+  null 1+  = null  ignorable
          where     Endpoint  3+  tag 0

        timeout_ms  int32     2-4  = -1
        elsewhere   []Endpoint  0+
        struct Endpoint
          host      string    0+
        """,
    )

    assert [field.name for field in schema.root.fields] == ["brokers", "timeout_ms", "elsewhere"]
    brokers, timeout_ms, elsewhere = schema.root.fields
    node_id, rack, where = brokers.struct.fields
    assert (brokers.is_array, brokers.type, node_id.type) == (True, "Broker", "int32")
    assert (rack.versions, rack.nullable, rack.default, rack.ignorable) == (
        (1, LAST),
        (1, LAST),
        None,
        True,
    )
    assert (where.tag, where.struct is elsewhere.struct) == (0, True)
    assert (timeout_ms.versions, timeout_ms.default) == ((2, 4), -1)


@pytest.mark.parametrize(
    ("type_name", "text", "default"),
    [
        ("int64", "= 0x7fff", 0x7FFF),
        ("bool", "= true", True),
        ("bool", "", False),
        ("string", "= word", "word"),
        ("string", "", ""),
        ("float64", "= 0.5", 0.5),
        ("uuid", "", bytes(16)),
        ("records", "", None),
        ("[]int32", "", []),
        ("[]int32", "null 0+ = null", None),
    ],
)
def test_default_has_the_type_of_the_field(type_name, text, default):
    (field,) = parse("Message", f"field {type_name} 0+ {text}").root.fields

    assert field.default == default
    assert type(field.default) is type(default)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a int32", "needs a name, a type and versions"),
        ("a int32 0+ sometimes", "sometimes has no meaning here"),
        ("a Missing 0+", "Missing has no fields"),
        ("a int32 0+\n  b int32 0+", "indented, but not below a struct"),
        ("a S 0+\n  b int32 0+\nc S 0+\n  d int32 0+", "defined twice"),
    ],
)
def test_definition_that_breaks_the_notation_is_rejected(text, reason):
    with pytest.raises(SchemaError, match=reason):
        parse("Message", text)


def test_names_found_at_import_leave_out_structs_and_comments():
    text = """
    a      []S    0+
      b    int32  0+
    # note
    struct S
      c    int8   0+
    d      int8   0+
    """

    assert top_level_names(text) == ["a", "d"]
    assert top_level_names("") == []
