"""Documents between processes: reading gives what the class says, or an error that names it."""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any, Generic, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import pytest

from kbroker.ipc.documents import SHOWN_MAX, Document, DocumentError, encode, reader

pytestmark = pytest.mark.unit

T = TypeVar("T")
Number = NewType("Number", int)


class Colour(IntEnum):
    RED = 1
    BLUE = 2


class Row(NamedTuple):
    slot: Number
    name: str | None
    colour: Colour = Colour.RED


class Options(TypedDict):
    first: int
    second: NotRequired[dict[str, list[int]]]


class Box(Document, Generic[T]):
    content: list[T | None]
    key: bytes = b""


class Whole(Document):
    box: Box[Row]
    ratio: float
    options: Options
    rest: Any


WHOLE = Whole(
    Box([Row(Number(1), None, Colour.BLUE), None], b"\0\xff"),
    1.5,
    {"first": 1, "second": {"a": [1, 2]}},
    {"any": ["thing"]},
)


def document() -> Any:
    return json.loads(encode(WHOLE))


def test_document_is_read_as_it_was_written() -> None:
    read = reader(Whole)(document())
    assert read == WHOLE
    assert read.box.content[0].colour is Colour.BLUE
    assert type(read.box.content[0]) is Row


def test_whole_number_does_for_a_fraction() -> None:
    assert reader(Whole)(document() | {"ratio": 2}).ratio == 2


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (["ratio"], "1", "Whole.ratio: float or int expected, not '1'"),
        (["ratio"], True, "Whole.ratio: float or int expected, not True"),
        (["box"], [], "Whole.box: dict expected, not []"),
        (["box", "key"], "xyz", "Box.key: hexadecimal digits expected, not 'xyz'"),
        (["box", "content", 0], [1, None], "Row has 3 values, not 2"),
        (["box", "content", 0], [True, None, 1], "Row.slot: int expected, not True"),
        (["box", "content", 0], [1, None, 3], "Row.colour: 3 is not a Colour"),
        (["box", "content", 1], 5, "Box.content: [1]: list or null expected, not 5"),
        (["options", "first"], None, "Options.first: int expected, not None"),
        (["options", "third"], 3, "Options does not have third"),
        (["options", "second", "a"], [1, "x"], "[1]: int expected, not 'x'"),
    ],
)
def test_value_of_another_type_is_named(path: list[Any], value: Any, text: str) -> None:
    found = document()
    at = found
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(DocumentError) as caught:
        reader(Whole)(found)
    assert text in str(caught.value)


@pytest.mark.parametrize(("holder", "name"), [((), "ratio"), (("options",), "first")])
def test_field_that_is_missing_is_named(holder: tuple[str, ...], name: str) -> None:
    found = document()
    at = found
    for step in holder:
        at = at[step]
    del at[name]
    with pytest.raises(DocumentError, match=f"has no {name}"):
        reader(Whole)(found)


def test_key_that_may_be_left_out_stays_out() -> None:
    assert reader(Options)({"first": 1}) == {"first": 1}


def test_long_value_is_cut_in_the_text() -> None:
    with pytest.raises(DocumentError) as caught:
        reader(Whole)(document() | {"ratio": "x" * 10_000})
    assert len(str(caught.value)) < SHOWN_MAX + 60


def test_class_that_json_cannot_tell_apart_has_no_reader() -> None:
    class Either(Document):
        value: int | str

    with pytest.raises(AssertionError, match="several types"):
        reader(Either)


def test_document_is_written_like_a_dataclass() -> None:
    class Order(Document):
        name: str
        count: int = 1
        rows: list[int] = []

    first, second = Order("a"), Order("a", rows=[])
    assert first == second != Order("b")
    assert first != ("a", 1, [])
    first.rows.append(3)
    assert (first.rows, second.rows) == ([3], [])
    assert repr(first) == "Order(name='a', count=1, rows=[3])"
    with pytest.raises(AttributeError):
        first.size = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("values", "named"), [((), {"rest": 1}), ((1, 2, 3, 4, 5), {}), ((1, 2, 3, 4), {"box": 5})]
)
def test_document_is_made_from_its_fields_only(values: Any, named: Any) -> None:
    with pytest.raises(TypeError, match="Whole has the fields box, ratio, options, rest"):
        Whole(*values, **named)


def test_class_of_other_keys_than_text_has_no_reader() -> None:
    with pytest.raises(AssertionError):
        reader(dict[int, int])
