"""Items are held against a schema that a stranger wrote, and none takes long."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError, DataError
from assay.serving.evals.item_schema import ItemSchema

EVIL, LONG = "(a+)+$", "a" * 20_000 + "!"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
PIECES = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "(a|b)", "\\d", "\\w", "^", "$", "a*", "b+", "(ab)?"])


def of_text(**keywords) -> dict:
    return {"type": "object", "properties": {"text": keywords}}


def fits(schema: dict, text: str) -> bool:
    try:
        ItemSchema(schema).check({"text": text})
    except DataError:
        return False
    return True


@settings(max_examples=40, deadline=None)
@given(pattern=st.lists(PIECES, min_size=1, max_size=5).map("".join), text=st.text("ab01 ", max_size=6))
def test_a_pattern_is_searched_as_ever(pattern: str, text: str) -> None:
    assert fits(of_text(pattern=pattern), text) == (re.search(pattern, text) is not None)


@pytest.mark.parametrize(
    "schema",
    [
        of_text(pattern=EVIL),
        of_text(allOf=[{"anyOf": [{"pattern": EVIL}]}]),
        {"$ref": "#/$defs/a", "$defs": {"a": of_text(pattern=EVIL)}},
        {**of_text(pattern=EVIL), "$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": DRAFT_7, "allOf": [{"$ref": "#/d"}], "d": of_text(pattern=EVIL)},
        {"propertyNames": {"pattern": "(x+x+)+y"}, **of_text(pattern=EVIL)},
    ],
)  # fmt: skip
def test_a_pattern_that_would_backtrack_for_ever_is_through_at_once(schema: dict) -> None:
    began_s = time.monotonic()
    assert not fits(schema, LONG)
    assert time.monotonic() - began_s < 1.0


@pytest.mark.parametrize(
    ("schema", "output"),
    [
        (of_text(pattern="(?=a)b"), "look-around"),
        (of_text(pattern=r"(a)\1"), "backreferences are not supported"),
        (of_text(pattern="(?:(?:a{1,1000}){1,1000}){1,100}"), "size limit"),
        ({"patternProperties": {EVIL: {}}}, "'patternProperties' is not supported"),
        ({"x": {"additionalProperties": False, "patternProperties": [EVIL]}, "$ref": "#/x"}, "'patternProp"),
        ({"x": {"$schema": DRAFT_7}, "$ref": "#/x"}, "only allowed at the top level"),
        ({"type": "objekt"}, "Invalid JSON Schema"),
        ({"type": "array"}, "type must be 'object'"),
    ],
)
def test_what_cannot_be_held_to_that_is_no_schema(schema: dict, output: str) -> None:
    with pytest.raises(ConfigError, match=output):
        ItemSchema(schema)


def doubling(depth: int) -> dict:
    """Two references at each level."""
    levels = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**levels, f"d{depth}": {}}}


NESTED = {"type": "object"}
for _ in range(400):
    NESTED = {"allOf": [NESTED]}


def test_a_schema_that_is_too_deep_is_refused() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        ItemSchema(NESTED)


def of_list(**keywords) -> dict:
    return {"properties": {"list": keywords}}


def test_a_list_whose_elements_have_to_differ_is_through_at_once() -> None:
    schema, began_s = ItemSchema(of_list(uniqueItems=True)), time.monotonic()
    schema.check({"list": [{"x": number} for number in range(20_000)]})
    schema.check({"list": [1, True, "1", [1], {"a": 1}, None]})
    for twice in ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], [1, 1.0], [[1.0], [1]]):
        with pytest.raises(DataError, match="duplicate elements"):
            schema.check({"list": twice})
    assert time.monotonic() - began_s < 3.0


def test_numbers_that_cannot_be_compared_are_a_fault_of_the_item() -> None:
    with pytest.raises(DataError, match=r"cannot be validated|does not fit"):
        ItemSchema(of_list(multipleOf=0.1)).check({"list": 10**400})


@pytest.mark.parametrize(
    ("schema", "output"),
    [
        (of_list(items={"enum": [*range(100_000)]}), "makes more than 1,000,000 checks for one item"),
        (doubling(40), "makes more than 1,000,000 checks for one item"),
        ({"$ref": "#"}, "endless reference cycle"),
        ({"$ref": "https://example.com/x"}, "external reference"),
    ],
)
def test_references_are_followed_so_often_and_nowhere_else(schema: dict, output: str) -> None:
    with pytest.raises(DataError, match=output):
        ItemSchema(schema).check({"text": "a", "list": [5] * 100})
    ItemSchema(doubling(5)).check({})


def test_a_tree_of_items_is_held_against_a_schema_that_refers_to_itself() -> None:
    schema = {"properties": {"next": {"$ref": "#"}, "text": {"type": "string", "pattern": "^a+$"}}}
    ItemSchema(schema).check({"text": "a", "next": {"text": "aa"}})
    with pytest.raises(DataError, match=r"item.next.text does not fit item_schema"):
        ItemSchema(schema).check({"text": "a", "next": {"text": "ab"}})
