"""What is found out about a run or a model while the ledger does not answer is written down once it does."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.store.home import Home
from assay.store.ledger import database, writer
from assay.store.ledger.writer import missed_subjects
from ledger_rows import locked
from sample_project import SampleProjects
from unit.evals.test_imports import harness_files, row


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_projects: SampleProjects) -> Home:
    folder = sample_projects.copy_to(tmp_path)
    monkeypatch.setenv("ASSAY_HOME", str(folder))
    monkeypatch.delenv("ASSAY_LEDGER", raising=False)
    monkeypatch.setattr(database, "LOCKED_S", 0.2)
    monkeypatch.setattr(writer, "LEAVE_S", 1.0)
    monkeypatch.setattr(writer, "FINISH_S", 1.0)
    home = Home.from_environment()
    home.open_ledger().close()
    return home


@pytest.fixture
def assay(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        output = capfd.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run


def test_an_audit_is_in_its_folder_and_comes_into_the_ledger_later(home: Home, assay) -> None:
    with locked(home):
        code, out, err = assay("runs", "audit", "unfinished", "--json")
    assert (code, json.loads(out)["verdict"]) == (3, "incomplete")
    assert "database is locked" in err and "recorded once the ledger is available" in err
    assert list(missed_subjects(home)) == ["unfinished"]
    code, out, _ = assay("runs", "show", "unfinished", "--json")
    assert (code, json.loads(out)["audit"]["verdict"]) == (0, "incomplete")
    assert not missed_subjects(home)


def test_imported_scores_are_in_their_folder_and_come_into_the_ledger_later(home: Home, assay, tmp_path: Path) -> None:
    path = harness_files(tmp_path, "arc", [row(acc=1.0), row(acc=0.0)], {"acc,none": 0.5}, {"acc": True})
    with locked(home):
        code, out, err = assay("eval", "import", path, "--run-id", "theirs", "--json")
    assert (code, json.loads(out)["benchmark"]) == (0, "arc"), err
    assert list(missed_subjects(home)) == ["theirs"]
    code, out, _ = assay("eval", "history", "theirs", "--json")
    assert (code, [load["benchmark"] for load in json.loads(out)]) == (0, ["arc"])
    assert not missed_subjects(home)


def test_what_can_not_be_written_of_one_run_holds_up_no_other(home: Home, assay, monkeypatch) -> None:
    for run_id in ("candidate", "finished"):
        writer.mark_missed(home, run_id)
    record = home.folder / "candidate" / "run.json"
    record.write_text(record.read_text()[:-20])
    code, _, err = assay("runs")
    assert code == 0
    assert "the ledger lacks what it missed of 'candidate'" in err
    assert list(missed_subjects(home)) == ["candidate"]
