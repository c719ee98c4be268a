"""Nobody waits for a ledger, and what it missed is known until it is written."""

import threading
import time
from pathlib import Path

import pytest

from assay.base.errors import ConfigError, StoreAwayError, StoreError
from assay.records.run import Run
from assay.store.home import Home
from assay.store.ledger import database, writer
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.writer import LedgerWriter, clear_missed, mark_missed, marking, missed_subjects
from assay.workflows.rebuild import fold_in_missed
from ledger_rows import locked


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCKED_S", 0.05)
    monkeypatch.setattr(writer, "LEAVE_S", 0.5)
    monkeypatch.setattr(writer, "RETRY_S", 0.02)


@pytest.fixture
def home(run: Run) -> Home:
    home = Home.at(Path(run.run_dir).parent)
    home.open_ledger().close()
    home.store_of(run.run_id).put("run.json", run.to_json().encode())
    return home


def runs_in(home: Home) -> list[str]:
    with home.open_ledger() as ledger:
        return [run.run_id for run in ledger.runs()]


def test_what_is_put_is_written_when_it_is_closed(home: Home, run: Run) -> None:
    with LedgerWriter(home, "r", again=pytest.fail) as to_ledger:
        to_ledger.put(lambda ledger: ledger.record_run(run))
    assert runs_in(home) == ["r"]
    assert not missed_subjects(home)


def test_who_closes_it_leaves_a_whole_ledger_file(home: Home, run: Run) -> None:
    """All in one file, which can be copied, and which readers leave as it is: no write-ahead log beside it."""
    with LedgerWriter(home, "r", again=pytest.fail) as to_ledger:
        to_ledger.put(lambda ledger: ledger.record_run(run))
    assert [path.name for path in Path(run.run_dir).parent.glob("ledger.*")] == ["ledger.db"]


def test_a_question_has_an_answer_or_none_in_time(home: Home, run: Run) -> None:
    with LedgerWriter(home, "r", again=Ledger.runs) as to_ledger:
        to_ledger.put(lambda ledger: ledger.record_run(run))
        assert to_ledger.query(Ledger.runs) == [run]
    with locked(home), LedgerWriter(home, "r", again=Ledger.runs) as to_ledger:
        to_ledger.put(lambda ledger: ledger.record_run(run))
        assert to_ledger.query(Ledger.runs, within_s=0.3) is None


def test_a_locked_ledger_costs_nobody_more_than_a_moment(
    home: Home, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    if_all_waited_s = 100 * database.LOCKED_S
    with locked(home):
        began_s = time.monotonic()
        with LedgerWriter(home, "r", again=lambda ledger: ledger.record_run(run)) as to_ledger:
            for _ in range(100):
                to_ledger.put(lambda ledger: ledger.record_run(run))
            assert time.monotonic() - began_s < if_all_waited_s / 2
        assert time.monotonic() - began_s < if_all_waited_s
    output = capsys.readouterr().err.splitlines()
    assert [line.partition(".")[0].partition(";")[0] for line in output] == [
        "the ledger is behind",
        "the ledger does not answer",
    ]
    assert list(missed_subjects(home)) == ["r"]
    with home.open_ledger() as ledger:
        fold_in_missed(home, ledger)
    assert (runs_in(home), missed_subjects(home)) == (["r"], {})


def test_a_ledger_that_comes_back_is_told_everything_again(home: Home, run: Run) -> None:
    def only_once(ledger: Ledger) -> None:
        events.append("at once")
        ledger.record_run(run)

    def again(ledger: Ledger) -> None:
        ledger.record_run(run)
        events.append("again")

    events: list[str] = []
    with LedgerWriter(home, "r", again) as to_ledger:
        with locked(home):
            to_ledger.put(only_once)
            while not missed_subjects(home):
                time.sleep(0.01)
            to_ledger.put(pytest.fail)  # its fact is in the folder, hence in all that is written again
        assert to_ledger.wait(5.0)
        assert not missed_subjects(home)
    assert events == ["at once", "again"]
    assert runs_in(home) == ["r"]


def test_who_goes_on_with_a_run_writes_down_what_the_ledger_missed_of_it(home: Home, run: Run) -> None:
    mark_missed(home, "r")
    with LedgerWriter(home, "r", again=lambda ledger: ledger.record_run(run)):
        pass
    assert (runs_in(home), missed_subjects(home)) == (["r"], {})


def test_what_another_ledger_missed_is_not_taken_for_written(home: Home, tmp_path: Path) -> None:
    other = Home.at(home.folder, f"sqlite:///{tmp_path}/other.db")
    mark_missed(other, "r")
    assert not missed_subjects(home)
    with home.open_ledger() as ledger:
        fold_in_missed(home, ledger)
    assert list(missed_subjects(other)) == ["r"]


def test_what_is_missed_while_it_is_written_down_stays_missed(home: Home) -> None:
    mark_missed(home, "r")
    marked_at_s = missed_subjects(home)["r"]
    time.sleep(0.01)
    mark_missed(home, "r")
    clear_missed(home, "r", marked_at_s=marked_at_s)
    assert list(missed_subjects(home)) == ["r"]
    clear_missed(home, "r", marked_at_s=missed_subjects(home)["r"])
    assert not missed_subjects(home)


def test_a_ledger_that_dies_while_a_command_writes_to_it_leaves_a_mark(home: Home, run: Run) -> None:
    with home.open_ledger() as ledger, pytest.raises(StoreError), marking(home, "r"):
        raise StoreAwayError("ledger: gone")
    assert list(missed_subjects(home)) == ["r"]
    with home.open_ledger() as ledger:
        assert not fold_in_missed(home, ledger)
    with home.open_ledger(), pytest.raises(ConfigError), marking(home, "r"):
        raise ConfigError("asked wrongly")
    assert (runs_in(home), missed_subjects(home)) == (["r"], {})


@pytest.mark.slow
def test_a_mark_that_is_made_again_is_there_meanwhile(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    mark_missed(home, "r")
    again = threading.Thread(target=lambda: [mark_missed(home, "r") for _ in range(2_000)])
    again.start()
    found = []
    while again.is_alive():
        found.append([*missed_subjects(home)])
    again.join()
    assert found and all(row == ["r"] for row in found)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.missed"]
