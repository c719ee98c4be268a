"""Rebuilding a ledger from folders of which some are damaged: each costs its own rows, by name."""

from pathlib import Path

from assay.records.run import Attempt, Run
from assay.store.attempts import save_attempt
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.incidents import read_incidents
from assay.store.objects import open_store
from assay.workflows.rebuild import rebuild_all
from machine import MACHINE


def lived(home: Home, run: Run, run_id: str) -> Path:
    """A run with two attempts and one entry in its log."""
    folder = home.run_dir(run_id)
    run = run.model_copy(update={"run_id": run_id, "run_dir": str(folder), "store_url": str(folder)})
    open_store(str(folder)).put("run.json", run.to_json().encode())
    CommitLog(open_store(run.store_url)).begin_attempt(world_size=1, now_s=0.0)
    for number in (1, 2):
        attempt = Attempt(run_id=run_id, attempt=number, world_size=1, start_step=0, started_s=0.0, **MACHINE)
        save_attempt(folder, attempt)
    return folder


def test_one_damaged_file_costs_its_own_rows_and_no_others(tmp_path: Path, run: Run) -> None:
    home = Home.at(tmp_path / "home")
    whole, bad_record, bad_attempt, bad_log = (lived(home, run, name) for name in "abcd")
    (bad_record / "run.json").write_bytes(b"{")
    (bad_attempt / "attempts" / "attempt-0001.json").write_bytes(b"")
    (bad_attempt / "launches").mkdir()
    (bad_attempt / "launches" / "0001.json").write_bytes(b"?")
    (bad_attempt / "incidents.jsonl").write_bytes(b"\xff\n{}\n")
    (bad_log / "log" / "00000000.json").write_bytes(b"")
    with home.open_ledger() as ledger:
        problems = rebuild_all(home, ledger).problems
        assert sorted(item.run_id for item in ledger.runs()) == ["a", "c", "d"]
        assert [len(ledger.attempts(name)) for name in "acd"] == [2, 1, 2]
    assert any(line.startswith("run 'b' is left out: ") for line in problems)
    assert any("attempt-0001.json: not JSON" in line for line in problems)
    assert any("log/00000000.json: not an entry" in line for line in problems)
    assert not any(str(whole) in line for line in problems)
    assert read_incidents(bad_attempt) == []
