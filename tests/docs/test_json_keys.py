"""docs/json.md says every key of `--json`, and a Markdown reader sees its tables."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt

from assay.base.model_fields import field_meanings, nested_models
from assay.cli.main import _COMMANDS, cli
from assay.reporting.views import json_reference
from assay.reporting.views.view import View

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
SPEAKING_NAMES = {
    *("after", "alarms", "at", "attempt", "attempts", "baseline", "before", "bits", "bits_per_row"),
    *("campaign", "campaign_device_hours", "candidate", "code_version", "committed", "confidence"),
    *("created", "currency", "dataset", "dataset_fingerprint", "designs", "device_hours", "ended"),
    *("evaluation_cost", "evaluation_hours", "expected_cost", "failure", "high", "higher_is_better"),
    *("host", "key", "last", "last_step", "law", "level", "low", "maximum", "minimum", "name"),
    *("num_bytes", "num_commits", "num_evaluations", "num_nan", "num_points", "num_recipes", "num_rows"),
    *("num_seeds", "num_steps", "num_validation_rows", "outcome", "page", "parameters", "parent"),
    *("pipeline", "planned", "prediction", "quarantine_reason", "rank", "reason", "recipe_sha256"),
    *("recommendation", "rows_per_s", "rule", "run_dir", "run_id", "runs", "scale", "scales", "seed"),
    *("speed", "spent", "spent_cost", "spent_device_hours", "stage", "stages", "started", "status"),
    *("step", "steps", "steps_per_epoch", "steps_per_s", "store_url", "tags", "target_scale", "text"),
    *("tokens_per_s", "total_steps", "train", "unit", "validation", "warnings", "world_size"),
}
"""Keys of views that need no description."""


def _printing() -> set[str]:
    """Every command that has `--json`, as it is called."""
    context = click.Context(cli)
    return {
        called
        for name in _COMMANDS
        for called, command in _with_its_parts(f"assay {name}", cli.get_command(context, name))
        if any("--json" in parameter.opts for parameter in command.params)
    }


def _with_its_parts(called: str, command: click.Command | None) -> Iterator[tuple[str, click.Command]]:
    assert command is not None
    yield called, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from _with_its_parts(f"{called} {name}", command.get_command(context, name))


def test_every_key_of_json_is_documented() -> None:
    """Rewrite with: assay runs keys > docs/json.md."""
    assert PAGE.read_text() == json_reference.json_reference()


OPTIONS = "--check|--against|--gpu|--changed|--ab|--by|--outer"
"""With each of these, a command prints another object."""


def test_every_command_that_prints_json_is_on_the_page() -> None:
    described = {
        re.sub(rf" (RUN\.\.\.|PROGRAM|PIPELINE|SESSION|--on \w+|{OPTIONS})$", "", name)
        for printed in json_reference.PRINTED
        for name in printed.commands.split(", ")
    }
    assert described == _printing()


def test_a_key_of_a_view_has_a_meaning_or_a_name_that_needs_none() -> None:
    roots = [printed.model for printed in json_reference.PRINTED]
    views = [root for root in (*roots, *nested_models(roots)) if issubclass(root, View)]
    assert len(views) > 10
    bare = {key for view in views for key, meaning in field_meanings(view).items() if not meaning}
    assert bare <= SPEAKING_NAMES


def test_no_two_kinds_of_objects_have_one_heading() -> None:
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("#")]
    assert len(headings) == len(set(headings))


@pytest.mark.parametrize("page", sorted(PAGE.parent.glob("*.md")), ids=lambda path: path.name)
def test_every_table_of_the_docs_renders(page: Path) -> None:
    """Each line of a table becomes a row of the table that it stands in, with as many cells as its head."""
    text = page.read_text()
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    in_code = {
        number
        for token in tokens
        if token.type in ("fence", "code_block") and token.map
        for number in range(*token.map)
    }
    lines = text.splitlines()
    written = {k for k, line in enumerate(lines) if line.startswith("|") and k not in in_code}
    rendered = set()
    for token in tokens:
        if token.type == "table_open" and token.map:
            rendered |= set(range(*token.map))
    assert written == rendered, f"lines {sorted(written ^ rendered)[:5]}"
    # A pipe in a cell, be it in code, begins another cell; what is beyond the head's is dropped unseen.
    for table in (token.map for token in tokens if token.type == "table_open" and token.map):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines[slice(*table)]}) == 1, table
