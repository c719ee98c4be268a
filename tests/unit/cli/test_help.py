"""The tree of commands: sixteen groups, help that fits a screen, and one spelling of an option."""

from collections import defaultdict
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from assay.cli.launch_target import OPTION_SECTIONS
from assay.cli.main import cli

SCREEN_LINES = 25
TRAIN_LINES = 40
FIRST_OPTIONS = {
    "--workers", "--resume", "--from", "--check", "--run-id",
    "--store", "--parallel", "--max-restarts", "--json", "--on",
}  # fmt: skip


def _commands(command: click.Command = cli, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Every command and group, as a context whose help can be shown."""
    names = {"help_option_names": ["-h", "--help"], "terminal_width": 80, "show_default": True}
    context = click.Context(command, info_name="assay", **names)
    yield from _below(context)


def _below(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            child = context.command.get_command(context, name)
            assert child is not None
            yield from _below(click.Context(child, info_name=name, parent=context))


def _help_lines(context: click.Context) -> list[str]:
    return context.command.get_help(context).splitlines()


def _options(command: click.Command) -> list[click.Option]:
    return [item for item in command.params if isinstance(item, click.Option) and not item.hidden]


def test_there_are_at_most_sixteen_groups_of_commands() -> None:
    assert len(cli.list_commands(click.Context(cli))) <= 16


def test_the_help_of_a_group_fits_a_screen() -> None:
    groups = [context for context in _commands() if isinstance(context.command, click.Group)]
    lines = {context.command_path: len(_help_lines(context)) for context in groups}
    assert lines.pop("assay train") <= TRAIN_LINES
    assert {path: number for path, number in lines.items() if number > SCREEN_LINES} == {}


def test_no_list_of_options_is_longer_than_a_screen() -> None:
    for context in _commands():
        for block in "\n".join(_help_lines(context)).split("\n\n"):
            assert len(block.splitlines()) <= SCREEN_LINES, (context.command_path, block)


def test_the_help_of_train_shows_the_options_that_matter_first_and_names_the_others() -> None:
    page = CliRunner().invoke(cli, ["train", "--help"]).output
    first, _, others = page.partition("Options:")[2].partition("More options")
    shown = {line.split()[0] for line in first.splitlines() if line.startswith("  --")}
    # click keeps the help option of the first context that a command had, which in other tests has no -h.
    assert shown - {"--help"} == FIRST_OPTIONS
    train = cli.get_command(click.Context(cli), "train")
    assert train is not None
    of_targets = {name for heading, names in OPTION_SECTIONS.items() if heading.startswith("--on ") for name in names}
    rest = {option.opts[0] for option in _options(train) if option.name not in of_targets} - FIRST_OPTIONS
    assert rest and all(f"{name} " in others.replace("\n", " ") for name in rest)
    assert "Of a target: --on slurm, --on kubernetes, --on ray, --on nodes" in others


def test_help_all_explains_every_option() -> None:
    page = CliRunner().invoke(cli, ["train", "--help-all"]).output
    train = cli.get_command(click.Context(cli), "train")
    assert train is not None
    described = {line.split()[0] for line in page.splitlines() if line.startswith("  --")}
    assert {option.opts[0] for option in _options(train)} <= described
    assert "--on slurm:" in page and "More options" not in page


def test_an_option_has_one_spelling() -> None:
    several = [(context.command_path, item.opts) for context in _commands() for item in _options(context.command)
               if len(item.opts) > 1]  # fmt: skip
    assert several == []


@pytest.mark.parametrize("option", ["--json", "--force", "--python-graders"])
def test_a_common_option_is_described_once(option: str) -> None:
    described = defaultdict(set)
    for context in _commands():
        for item in _options(context.command):
            described[item.opts[0]].add(item.help)
    assert len(described[option]) == 1


def test_a_group_that_is_a_command_runs_unless_the_first_word_names_another() -> None:
    def output(*words: str) -> str:
        return CliRunner().invoke(cli, words, prog_name="assay").output

    assert output("train", "join", "--help").startswith("Usage: assay train join [OPTIONS] RUN")
    assert output("train", "--max-restarts", "x", "join").startswith("Usage: assay train [OPTIONS]")
    assert output("runs", "--limit", "0").startswith("Usage: assay runs list [OPTIONS]")
    assert output("triage", "--nonsense").startswith("Usage: assay triage overview [OPTIONS]")
    assert "No such command 'shwo'" in output("decide", "shwo")
