"""A lost ledger is written anew from the folders, row by row what it was; on both databases."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import main
from assay.store.home import Home
from assay.store.ledger import database, tables
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.store.ledger.writer import missed_subjects
from assay.workflows.rebuild import SOURCES, rebuild_all
from ledger_rows import all_rows, copy, empty, locked
from sample_project import SampleProjects

DATABASES = ["sqlite", "postgres"]


def run(*arguments: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert not ended.value.code


@pytest.fixture
def other_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """Empty, on the database that the test names."""
    url = f"sqlite:///{tmp_path / 'other.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    with open_ledger(url) as ledger:
        empty(ledger)
        yield ledger


def test_every_table_says_which_files_it_is_written_from():
    named = {table for source in SOURCES for table in source.tables}
    assert named == {table.name for table in tables.TABLES} - {tables.layout.name}
    assert all(source.files for source in SOURCES)


@pytest.mark.parametrize("other_ledger", DATABASES, indirect=True)
def test_what_commands_wrote_is_there_again_row_by_row(
    other_ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_projects: SampleProjects
) -> None:
    home = Home.at(sample_projects.copy_to(tmp_path / "project", campaign=True))
    monkeypatch.setenv("ASSAY_HOME", str(home.folder))
    run("runs", "tag", "finished", "kept")
    with home.open_ledger() as ledger:
        copy(ledger, other_ledger)
    before = all_rows(other_ledger)
    filled = {name for name, rows in before.items() if rows}
    assert filled >= set(before) - {"incidents", "metric_events", "launches"}, "tables are put to the test"
    empty(other_ledger)
    assert not rebuild_all(home, other_ledger).problems
    after = all_rows(other_ledger)
    for name, rows in before.items():
        assert _unplaced(after[name]) == _unplaced(rows), name


def _unplaced(rows: list[tuple[Any, ...]]) -> list[str]:
    """Rows with one name for the folders in which the project was made and lies now."""
    return [re.sub(r"/[\w/-]*/(making-[a-z-]+|project)\b", "PROJECT", repr(row)) for row in rows]


class Killed(BaseException):
    """SIGKILL: nothing is said, and nothing is marked."""


@pytest.mark.parametrize(
    ("command", "fact", "table"),
    [
        pytest.param("decide compare candidate finished", "record_comparison", "comparisons", marks=pytest.mark.slow),
        ("runs tag finished kept", "record_run_notes", "run_notes"),
        ("runs audit finished", "record_audit", "audits"),
        pytest.param("decide run {folder}/campaign.yaml", "record_decision", "decisions", marks=pytest.mark.slow),
    ],
)
def test_what_a_command_that_was_killed_had_put_into_a_folder_only_is_found_by_a_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_projects: SampleProjects,
    command: str, fact: str, table: str,
) -> None:  # fmt: skip
    home = Home.at(sample_projects.copy_to(tmp_path, campaign="decide run" in command))
    monkeypatch.setenv("ASSAY_HOME", str(home.folder))
    with home.open_ledger() as ledger, ledger.writing() as connection:
        connection.execute(f"DELETE FROM {table}")

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, fact, killed)
        with pytest.raises(Killed):
            main(command.format(folder=tmp_path).split())
    assert not missed_subjects(home)
    with home.open_ledger() as ledger:
        assert not all_rows(ledger)[table]
    run("runs", "--rebuild")
    with home.open_ledger() as ledger:
        assert all_rows(ledger)[table]


@pytest.mark.slow
def test_a_campaign_whose_ledger_is_away_tries_again_later_and_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sample_projects: SampleProjects,
) -> None:
    home = Home.at(sample_projects.copy_to(tmp_path, campaign=True))
    monkeypatch.setenv("ASSAY_HOME", str(home.folder))
    monkeypatch.setattr(database, "LOCKED_S", 0.05)
    attempts = sorted(home.folder.glob("small-*/attempts/*"))
    with locked(home), pytest.raises(SystemExit) as ended:
        main(["decide", "run", str(tmp_path / "campaign.yaml")])
    output = capsys.readouterr().err
    assert (ended.value.code, output.count("error: ")) == (75, 1)
    assert "Another process has held it" in output
    run("decide", "run", tmp_path / "campaign.yaml")
    assert sorted(home.folder.glob("small-*/attempts/*")) == attempts
