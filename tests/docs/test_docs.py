"""The documentation says what the code does: each command, key and link."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from assay.base.config import read_config_file, validated
from assay.base.key_reference import key_reference
from assay.cli.decide.group import KEYS_HEAD
from assay.cli.main import _COMMANDS, cli
from assay.cli.parameters import InputFile
from assay.decision.candidate import known_good_recipe, patched
from assay.decision.config import CampaignConfig
from assay.evals.config import read_suite
from assay.planning.program.reference import program_reference
from assay.store.settings import settings_reference
from assay.training.recipe import Recipe, recipe_reference
from assay.workflows.ladder.config import ladder_reference
from assay.workflows.pipeline.config import pipeline_reference
from assay.workflows.pipeline.folder import load_pipeline
from assay.workflows.pipeline.stages import stage_recipe

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SPEAKING_NAMES = {
    "type",
    "seed",
    "epochs",
    "num_layers",
    "num_heads",
    "dropout",
    "encoder",
    "data",
    "loader",
    "method",
    "trainer",
    "retention",
    "betas",
    "epsilon",
    "optimizer",
    "schedule",
    "head_dropout",
    "layout",
    "column",
}
"""Keys whose name says it all."""
BARE_KEY = re.compile(r"^- `(\w+)(?:: [^`]*)?`(?: \(required\))?$", re.M)
"""A key of a reference page without a meaning."""


def test_every_key_of_a_recipe_is_documented() -> None:
    """Rewrite with: assay train keys > docs/recipe.md."""
    assert (ROOT / "docs" / "recipe.md").read_text() == recipe_reference()


def test_every_key_of_a_homes_settings_is_documented() -> None:
    """Rewrite with: assay runs keys --settings > docs/settings.md."""
    assert (ROOT / "docs" / "settings.md").read_text() == settings_reference()


def test_every_key_of_a_program_is_documented() -> None:
    """Rewrite with: assay plan keys > docs/program.md."""
    assert (ROOT / "docs" / "program.md").read_text() == program_reference()


def test_every_key_of_a_campaign_is_documented() -> None:
    """Rewrite with: assay decide keys > docs/campaign.md."""
    reference = key_reference(KEYS_HEAD, CampaignConfig)
    assert (ROOT / "docs" / "campaign.md").read_text() == reference
    assert set(BARE_KEY.findall(reference)) <= SPEAKING_NAMES


def test_every_key_of_a_ladder_is_documented() -> None:
    """Rewrite with: assay decide keys --ladder > docs/ladder-keys.md."""
    reference = ladder_reference()
    assert (ROOT / "docs" / "ladder-keys.md").read_text() == reference
    assert set(BARE_KEY.findall(reference)) <= SPEAKING_NAMES


def test_every_key_of_a_pipeline_is_documented() -> None:
    """Rewrite with: assay train keys pipeline > docs/pipeline.md."""
    reference = pipeline_reference()
    assert (ROOT / "docs" / "pipeline.md").read_text() == reference
    assert set(BARE_KEY.findall(reference)) <= SPEAKING_NAMES


def test_the_pipeline_and_its_recipes_and_suite_are_valid() -> None:
    declared = load_pipeline(ROOT / "recipes" / "pipeline" / "digits.yaml")
    assert declared.config.compare is not None
    for stage in declared.config.stages:
        found = stage_recipe(
            declared, stage.name, 0, folder_of=lambda element: Path(element.stage), step_of=lambda _: None
        )
        validated(Recipe, found)
    for benchmark in declared.config.compare.benchmarks:
        assert benchmark.suite is not None
        assert benchmark.name in {item.name for item in read_suite(declared.file.parent / benchmark.suite).benchmarks}


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "campaigns").glob("*.yaml")), ids=lambda path: path.name)
def test_every_campaign_is_valid_and_its_recipe_is_there(path: Path) -> None:
    config = validated(CampaignConfig, read_config_file(path, []))
    recipe, _ = known_good_recipe(path.parent / config.recipe)
    for candidate in config.candidates:
        validated(Recipe, patched(recipe, candidate.patch, arm=candidate.name, seed=0))


def test_every_key_has_a_meaning_or_a_name_that_needs_none() -> None:
    assert set(BARE_KEY.findall(recipe_reference())) <= SPEAKING_NAMES


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_is_documented(command: str) -> None:
    assert any(f"assay {command}" in page.read_text() for page in PAGES)


@pytest.mark.parametrize("command", _COMMANDS)
def test_no_commands_help_is_cut_in_the_midst_of_a_sentence(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    if isinstance(found, click.Group):
        _, _, listed = found.get_help(click.Context(found, info_name=command)).partition("Commands:")
        assert listed and "..." not in listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    "recipe",
    [path for path in sorted((ROOT / "recipes").rglob("*.yaml")) if path.parent.name not in ("campaigns", "pipeline")],
    ids=lambda path: path.name,
)
def test_every_recipe_is_valid(recipe: Path) -> None:
    validated(Recipe, read_config_file(recipe, []))


def test_help_needs_neither_torch_nor_pydantic() -> None:
    program = (
        "import sys\nfrom assay.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'pydantic', 'pyarrow', 'sqlalchemy') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
    assert "train" in out


def _examples() -> list[str]:
    """Every line of a code block that begins with `assay`, without its remark."""
    lines = [line for page in PAGES for line in page.read_text().splitlines()]
    commands = [line.strip().split("  #")[0].strip() for line in lines if re.match(r"^    assay \w", line)]
    return sorted({command for command in commands if "..." not in command})


@pytest.mark.parametrize("example", _examples())
def test_every_example_is_a_command_that_there_is(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, *arguments = shlex.split(example)
    command: click.Command = cli
    context = click.Context(cli, info_name="assay")
    while isinstance(command, click.Group) and arguments and arguments[0] in command.list_commands(context):
        name, command, arguments = command.resolve_command(context, arguments)
        assert command is not None, name
        context = click.Context(command, info_name=name, parent=context)
    # Paths, runs and campaigns need not exist here; all else is parsed as it would be.
    for parameter in command.params:
        if isinstance(parameter.type, click.Path) or type(parameter.type).__module__ == InputFile.__module__:
            monkeypatch.setattr(parameter, "type", click.STRING)
    command.make_context("assay", arguments, parent=context.parent, resilient_parsing=False)


def test_decisions_are_numbered_without_holes() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text().splitlines()[4:]
    assert [path.name[:4] for path in decisions] == [f"{number:04}" for number in range(1, len(decisions) + 1)]
    for number, path in enumerate(decisions, 1):
        title = path.read_text().splitlines()[0]
        assert title.startswith(f"# {number}. ")
        assert listed[number - 1] == f"{number}. [{title.partition('. ')[2]}]({path.name})"
