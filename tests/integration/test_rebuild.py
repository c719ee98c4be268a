"""A lost ledger is written anew from the folders, row by row what it was; on both databases."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.cli.main import main
from assay.store.home import Home
from assay.store.ledger import database, tables
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.store.ledger.writer import missed_subjects
from assay.workflows.rebuild import SOURCES, rebuild_all
from ledger_rows import Rows, all_rows, copy, empty, locked
from older_home import unpack_home

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


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Rows, Rows]:
    """A home of an older assay: its ledger as that left it, and as today's writes it anew."""
    home = Home.at(unpack_home(tmp_path_factory.mktemp("older"), "ec8e02d"))
    with home.open_ledger() as ledger:
        before = all_rows(ledger)
        rebuild_all(home, ledger)
        return home, before, all_rows(ledger)


def test_all_that_an_older_assay_had_in_its_ledger_only_is_found_again(older: tuple[Home, Rows, Rows]) -> None:
    _, before, after = older
    assert (len(before["audits"]), len(before["comparisons"])) == (6, 1)
    for name, rows in before.items():
        assert set(map(repr, rows)) <= set(map(repr, after[name])), name


@pytest.mark.parametrize("other_ledger", DATABASES, indirect=True)
def test_a_ledger_that_was_lost_is_written_anew_row_by_row(
    older: tuple[Home, Rows, Rows], other_ledger: Ledger
) -> None:
    home, _, known = older
    assert not rebuild_all(home, other_ledger).remarks
    assert all_rows(other_ledger) == known


def test_an_older_run_whose_audit_was_in_a_lost_ledger_is_audited_again(tmp_path: Path) -> None:
    home = Home.at(unpack_home(tmp_path, "ec8e02d"))
    (tmp_path / "runs" / "ledger.db").unlink()
    (tmp_path / "runs" / "candidate" / "comparison.html").write_text("")
    with home.open_ledger() as ledger:
        (remark,) = rebuild_all(home, ledger).remarks
        audit = ledger.audit("finished")
        assert ledger.audit("unfinished") is None
    assert audit is not None and audit.verdict == "pass"
    assert remark.startswith("run 'candidate' was compared by an older assay")


@pytest.fixture(scope="module")
def lived_in(
    tiny_dataset: Path, tiny_tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Home]:
    """Filled by commands: a killed run with its evaluation beside, another, a comparison, a campaign."""
    folder = tmp_path_factory.mktemp("lived-in")
    trainer = {**tiny_tree["trainer"], "max_steps": 10}
    loss = {"type": "classification", "name": "loss", "score": "log_loss"}
    files = {
        "suite.yaml": {"name": "s", "benchmarks": [loss]},
        "recipe.yaml": {**tiny_tree, "trainer": trainer},
        "watched.yaml": {**tiny_tree, "trainer": trainer, "evaluation": {"suite": str(folder / "suite.yaml")}},
        "faults.yaml": {"faults": [{"type": "kill", "rank": 1, "attempt": 1, "step": 7}]},
        "campaign.yaml": {
            "name": "small",
            "question": "Does a far higher learning rate help?",
            "recipe": "recipe.yaml",
            "candidates": [{"name": "faster", "patch": {"trainer.optimizer.learning_rate": 0.02}}],
            "seeds": 2,
            "budget_device_hours": 1,
            "benchmarks": [
                {"type": "predictions", "name": "likelihood", "score": "log_likelihood"},
                {"type": "suite", "name": "loss", "suite": "suite.yaml"},
            ],
            "rule": {"primary": ["likelihood"], "least_effect": 0.02},
        },
    }
    for name, tree in files.items():
        (folder / name).write_text(yaml.safe_dump(tree))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(folder / "home"))
        run(
            "train",
            folder / "watched.yaml",
            "--run-id",
            "killed",
            "--workers",
            2,
            "--faults",
            folder / "faults.yaml",
        )
        run("train", folder / "recipe.yaml", "--run-id", "other", "seed=3")
        run("compare", "killed", "other", "--allowed-auc-loss", 0.9)
        run("runs", "tag", "killed", "kept")
        run("campaign", "run", folder / "campaign.yaml")
        yield Home.from_environment()


@pytest.mark.slow
@pytest.mark.timeout(900)  # seven runs, one of them killed
@pytest.mark.parametrize("other_ledger", DATABASES, indirect=True)
def test_what_commands_wrote_is_there_again_row_by_row(lived_in: Home, other_ledger: Ledger) -> None:
    with lived_in.open_ledger() as ledger:
        copy(ledger, other_ledger)
    before = all_rows(other_ledger)
    filled = {name for name, rows in before.items() if rows}
    assert filled >= set(before) - {"notices", "metric_events", "launches"}, "tables are put to the test"
    empty(other_ledger)
    assert not rebuild_all(lived_in, other_ledger).remarks
    after = all_rows(other_ledger)
    for name, rows in before.items():
        assert after[name] == rows, name


class Killed(BaseException):
    """SIGKILL: nothing is said, and nothing is marked."""


@pytest.mark.parametrize(
    ("command", "fact", "table"),
    [
        pytest.param("compare candidate finished", "record_comparison", "comparisons", marks=pytest.mark.slow),
        ("runs tag finished kept", "record_remarks", "remarks"),
        ("audit finished", "record_audit", "audits"),
        pytest.param(
            "campaign run {folder}/campaign.yaml", "record_decision", "decisions", marks=pytest.mark.slow
        ),
    ],
)
def test_what_a_command_that_was_killed_had_put_into_a_folder_only_is_found_by_a_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, fact: str, table: str
) -> None:
    home = Home.at(unpack_home(tmp_path, "ec8e02d"))
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home.at(unpack_home(tmp_path, "ec8e02d"))
    monkeypatch.setenv("ASSAY_HOME", str(home.folder))
    monkeypatch.setattr(database, "LOCKED_S", 0.05)
    attempts = sorted(home.folder.glob("small-*/attempts/*"))
    with locked(home), pytest.raises(SystemExit) as ended:
        main(["campaign", "run", str(tmp_path / "campaign.yaml")])
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("error: ")) == (75, 1)
    assert "Another process has held it" in said
    run("campaign", "run", tmp_path / "campaign.yaml")
    assert sorted(home.folder.glob("small-*/attempts/*")) == attempts
