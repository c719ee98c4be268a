"""Text of users becomes values of bounded depth, or one error that says why not."""

import json
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from assay.base.config import parse_override, read_config_file
from assay.base.errors import AssayError, ConfigError
from assay.base.parsing.bounded_yaml import parse_yaml
from assay.base.parsing.nesting import MAX_DEPTH, TooDeepError, parse_json
from assay.data.dataset.formats import template
from assay.data.dataset.formats.template import ChatTemplate
from assay.planning.program.file import read_program
from assay.scoring.formula import Formula
from assay.scoring.grader_runner import sample_values
from assay.scoring.json_lines import json_lines
from assay.scoring.registry.matching import json_match
from assay.scoring.registry.registry import Registry
from assay.workflows.pipeline.config import is_pipeline


@given(wrappers=st.lists(st.booleans(), max_size=3 * MAX_DEPTH), siblings=st.lists(st.integers(), max_size=5))
@example(wrappers=[True] * MAX_DEPTH, siblings=[])
@example(wrappers=[False] * (MAX_DEPTH + 1), siblings=[1])
def test_json_and_yaml_are_read_to_the_same_depth(wrappers: list[bool], siblings: list[int]) -> None:
    text = "1"
    for is_list in wrappers:
        text = f"[{', '.join([text, *map(str, siblings)])}]" if is_list else f'{{"a": {text}}}'
    if len(wrappers) <= MAX_DEPTH:
        assert parse_json(text) == json.loads(text) == parse_yaml(text)
        return
    with pytest.raises(TooDeepError):
        parse_json(text)
    with pytest.raises(yaml.YAMLError, match="are nested more than 100 deep"):
        parse_yaml(text)


@pytest.mark.parametrize("depth", [101, 900, 100_000])
def test_what_models_and_other_tools_wrote_may_be_nested_as_it_likes(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    assert sample_values(deep, {})["sample"]["output_json"] is None
    assert json_match(deep, ["[1]"]) is False
    with pytest.raises(AssayError, match=r"line 1 .*100 deep"):
        json_lines(deep.encode(), Path("log.jsonl"), of_what="items")


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10))
NO_YAML = {
    "lists in lists": ("a: " + "[" * 300, "100 deep"),
    "indented a thousand times": ("\n".join(" " * depth + "a:" for depth in range(1000)), "100 deep"),
    "a billion laughs": (LAUGHS, "aliases repeat more than 100,000 values"),
    "a billion laughs, merged": (MERGED, "repeat more than 100,000 values"),
    "a list in itself": ("a: &a [*a]", "refers to a node that contains it"),
    "a mapping in itself": ("&a\nb: *a", "refers to a node that contains it"),
    "no date": ("a: 2026-13-45", "'2026-13-45' is not a valid timestamp: month must be in 1..12"),
    "no time zone": ("a: 2001-12-14 21:59:43 +99:99", "is not a valid timestamp"),
    "digits without end": ("a: " + "9" * 5_000, "is not a valid int"),
    "hexadecimal digits": ("a: 0x" + "f" * 5_000, "is not a valid int: the number has thousands"),
    "a tag of another kind": ("a: !!int x", "'x' is not a valid int"),
    "a tag of nothing": ("a: !!int ''", "'' is not a valid int"),
    "a word as a boolean": ("a: !!bool x", "'x' is not a valid bool"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_YAML)
def test_yaml_that_would_take_all_memory_or_is_no_value_is_one_error_wherever_it_is_read(
    case: str, tmp_path: Path
) -> None:
    text, output = NO_YAML[case]
    (path := tmp_path / "x.yaml").write_text(text)
    (tmp_path / "registry" / "evals").mkdir(parents=True)
    (tmp_path / "registry" / "evals" / "x.yaml").write_text(text)
    began_s = time.monotonic()
    readers = (
        lambda: read_config_file(path, ()),
        lambda: read_program(path),
        lambda: Registry(tmp_path / "registry"),
        lambda: parse_override(f"k={text.removeprefix('a: ')}"),
    )
    for read in readers:
        with pytest.raises(ConfigError) as refused:
            read()
        assert output in str(refused.value) and len(str(refused.value)) < 3_000
    assert not is_pipeline(path)
    assert time.monotonic() - began_s < 10.0


def test_anchors_that_are_named_now_and_then_are_read_as_ever(tmp_path: Path) -> None:
    (path := tmp_path / "x.yaml").write_text("base: &base {a: 1}\none: {<<: *base, b: 2}\ntwo: [*base, *base]\n")
    loaded = read_config_file(path, ())
    assert loaded.values["one"] == {"a": 1, "b": 2} and loaded.values["two"] == [{"a": 1}] * 2
    assert loaded.lines["two"] == 3


@pytest.mark.parametrize(
    "source",
    [
        "{{" + "(" * 3000 + "1" + ")" * 3000 + "}}",
        "{% for a in b %}" * 300 + "{% endfor %}" * 300,
        "{{ " + "9" * 100_000 + " }}",
        "{{ 'a' * 10 ** 10 }}",
    ],
)
def test_a_chat_template_that_is_too_deep_or_too_much_is_one_error(source: str) -> None:
    with pytest.raises(AssayError, match="template"):
        ChatTemplate(source, {}, where="x").render([{"role": "user", "content": "a"}], {}, "row 1")


def test_a_chat_template_that_python_cannot_compile_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine's speed: Python refuses so many blocks within one another."""
    monkeypatch.setattr(template, "MAX_SECONDS", 60.0)
    with pytest.raises(AssayError, match="not a Jinja template: too many levels of indentation"):
        ChatTemplate("{% for a in b %}" * 110 + "{% endfor %}" * 110, {}, where="x")


def test_a_formula_that_is_too_deep_is_refused_or_has_no_value() -> None:
    with pytest.raises(ConfigError, match=r"too deeply|no formula"):
        Formula("-" * 1990 + "1")
    formula = Formula("-" * 600 + "1")

    def value_below(depth: int) -> float:
        return value_below(depth - 1) if depth else formula.value({})

    assert value_below(0) == 1.0
    with pytest.raises(ValueError, match="has no value"):
        value_below(600)
