"""What is said of a configuration that is not valid."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, PositiveInt, model_validator

from assay.base.config import FrozenConfig, LoadedConfig, WrongKeyError, read_config_file, validated
from assay.base.errors import ConfigError


class Section(FrozenConfig):
    low: int = 0
    high: int = 1

    @model_validator(mode="after")
    def _in_order(self) -> "Section":
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


class Rule(FrozenConfig):
    names: tuple[int, ...] = Field(min_length=1)
    interval: PositiveInt | Literal["auto"] = "auto"
    rate: float = Field(default=0.5, gt=0.0, le=1.0)


class Whole(FrozenConfig):
    rule: Rule | None = None
    section: Section = Section()
    names: tuple[str, ...] = ()
    count: int = 0

    @model_validator(mode="after")
    def _has_names(self) -> "Whole":
        if self.count > len(self.names):
            raise ValueError("fewer names than the count")
        return self


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"count": "many"},
            "count: expected a whole number (given: 'many')",
        ),
        ({"section": {"low": 3, "high": 1}}, "section: low is above high"),
        ({"section": [1, 2]}, "section: expected keys with values (low, high)"),
        ({"names": {"a": 1}}, "names: expected a list, in brackets"),
        (
            {"rule": {"names": [1], "interval": "autoo"}},
            "rule.interval: expected a whole number or 'auto' (given: 'autoo')",
        ),
        ({"rule": {"names": [1], "interval": 0}}, "rule.interval: expected more than 0 or 'auto' (given: 0)"),
        (
            {"rule": {"names": [1], "interval": "1_0 k"}},
            "rule.interval: expected a whole number without separator or unit; perhaps 10 or 'auto' (given: '1_0 k')",
        ),
        ({"rule": {"names": ["a"]}}, "rule.names.0: expected a whole number (given: 'a')"),
        ({"rule": {"names": []}}, "rule.names: expected 1 item or more"),
        ({"rule": "yes"}, "rule: expected keys with values (names, interval, rate) (given: 'yes')"),
        (
            {"rule": {"names": [1], "rate": "5%"}},
            "rule.rate: expected a number without separator or unit; perhaps 0.05 (given: '5%')",
        ),
        ({"rule": {"names": [1], "rate": 1.5}}, "rule.rate: expected 1 or less (given: 1.5)"),
        ({"names": ["a"], "count": 2}, "the whole: fewer names than the count"),
    ],
)
def test_a_wrong_value_is_shown_and_a_whole_section_is_not(values, message):
    with pytest.raises(ConfigError) as raised:
        validated(Whole, LoadedConfig(values, {}))
    assert str(raised.value) == f"the whole is not valid:\n  {message}"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a:\n  b: 1\n c: 2\n", 3, "not indented like the lines around it.\n     c: 2"),
        (" a: 1\nb: 2\n", 2, "not indented like the lines around it.\n    b: 2"),
        ("a: 1\n b: 2\n", 2, "indented too far"),
        ("a: why: so\n", 1, "quote a value that contains ': '"),
        ("a:\n\tb: 1\n", 2, "the line is indented with a tab; use spaces"),
        ("a: 1\nb\nc: 2\n", 3, "a key is not followed by ':', here or in the line above"),
        ("a: [1, 2\nb: 3\n", 2, "a '[' is not closed"),
        ("a: {x: 1\nb: 3\n", 2, "a '{' is not closed"),
        ('a: "x\nb: 3\n', 3, "a quote or a bracket is not closed"),
        ("a: @x\n", 1, "must be quoted"),
        ("a: *x\n", 1, "found undefined alias 'x'"),
    ],
)
def test_what_is_no_yaml_is_named_at_its_line_with_what_is_meant(tmp_path: Path, text, line, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_config_file(path, ())
    assert str(raised.value).startswith(f"{path}:{line}: not readable as YAML: ")
    assert message in str(raised.value)
    assert "<" not in str(raised.value), "a parser's words tell of its blocks and tokens"


class Left(FrozenConfig):
    type: Literal["left"] = "left"
    depth: int = 0


class Right(FrozenConfig):
    type: Literal["right"]


class Fork(FrozenConfig):
    way: Annotated[Left | Right, Field(discriminator="type")]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ({"type": "up"}, "way.type: 'up' is none of these: left, right."),
        ({}, "way.type: required, and not given."),
        ({"type": "right", "depth": 3}, "way.depth: no such key. Another 'type' of that section has it."),
    ],
)
def test_a_kind_that_there_is_not_is_told_from_those_that_there_are(way, message):
    with pytest.raises(ConfigError) as raised:
        validated(Fork, LoadedConfig({"way": way}, {}))
    assert str(raised.value) == f"the fork is not valid:\n  {message}"


@pytest.mark.parametrize(
    ("text", "found"),
    [("", "nothing"), ("- a", "a list"), ("words", "text"), ("3", "a number"), ("yes", "true or false")],
)
def test_a_file_that_holds_no_mapping_is_said_in_words(text: str, found: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"expected a mapping of keys to values, found {found}[.]"):
        read_config_file(file, ())


def test_what_is_not_valid_is_called_by_its_file_and_not_by_our_class():
    class BatchPlanConfig(Whole):
        pass

    with pytest.raises(ConfigError, match=r"^some/file\.yaml is not a valid batch plan:\n"):
        validated(BatchPlanConfig, LoadedConfig({"cont": 1, "count": 0}, {"count": "some/file.yaml"}))


def test_a_wrong_key_in_a_list_is_told_with_its_line_and_the_keys_that_there_are(tmp_path: Path) -> None:
    class Directions(FrozenConfig):
        variants: tuple[Annotated[Left | Right, Field(discriminator="type")], ...]

    file = tmp_path / "variants.yaml"
    file.write_text("variants:\n  - {type: right}\n  - type: left\n    metric: 1\n")
    with pytest.raises(ConfigError) as raised:
        validated(Directions, read_config_file(file, ()))
    assert str(raised.value).splitlines()[1] == f"  variants.1.metric ({file}:4): no such key. Known here: type, depth."
    with pytest.raises(ConfigError, match=r"variants\.0\.metric \(override\): no such key"):
        validated(Directions, read_config_file(file, ["variants=[{type: left, metric: 1}]"]))


def test_what_a_check_of_the_whole_finds_wrong_with_a_key_is_told_with_that_key_and_its_line(
    tmp_path: Path,
) -> None:
    class Chosen(Whole):
        chosen: str = ""

        @model_validator(mode="after")
        def _is_listed(self) -> "Chosen":
            if self.chosen not in self.names:
                raise WrongKeyError("chosen", f"'{self.chosen}' is not listed")
            return self

    file = tmp_path / "chosen.yaml"
    file.write_text("names: [a]\n# a word\nchosen: b\n")
    with pytest.raises(ConfigError, match=rf"\n  chosen \({file}:3\): 'b' is not listed\.$"):
        validated(Chosen, read_config_file(file, ()))
