"""What the audit says of a real run after somebody tampered with it."""

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.base.digest import sha256_of_bytes
from assay.cli.main import main
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.store.attempts import attempt_path, saved_attempts
from assay.store.commit_log import RECEIPTS_NAME, CommitLog
from assay.store.home import Home
from assay.store.logs.entry import entry_text
from assay.store.objects import open_store
from assay.store.run_results import AUDIT_FILE, saved_audit
from assay.training.audit import audit_run
from assay.workflows.audit import audit_and_record


@pytest.fixture(scope="module")
def template_run(run_here, tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a finished run and its dataset, moved from where it was made; and the run's id."""
    created = tmp_path_factory.mktemp("audited") / "made"
    shutil.copytree(tiny_dataset, created / "dataset")
    manifest = created / "dataset" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(tiny_dataset), str(created / "dataset")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(created / "home"))
        run, log, _ = run_here(data__dataset=str(created / "dataset"))
    assert audit_run(run, log).verdict == "pass"
    return created.rename(created.with_name("template_run")), run.run_id


@pytest.fixture
def finished(template_run: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy of that run and of its dataset, which a test may damage."""
    shutil.copytree(template_run[0], tmp_path / "mine")
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "mine" / "home"))
    run = Home.from_environment().run(template_run[1])
    return run, CommitLog(open_store(run.store_url)), tmp_path / "mine" / "dataset"


def tamper_with_receipts(run_dir: str, log: CommitLog, *, fix_digest: bool) -> int:
    """Take one row out of a receipt; returns the row."""
    commit = log.commits()[-1]
    path = Path(run_dir) / commit.folder / RECEIPTS_NAME
    with np.load(path) as file:
        columns = dict(file)
    from assay.base.seeds import mix64
    from assay.data.dataset.split import split_view
    from assay.data.loader.loader import Loader
    from assay.records.cursor import Cursor
    from assay.training.recipe import Recipe

    run = Home.from_environment().run(Path(run_dir).name)
    recipe = Recipe.model_validate(run.recipe)
    dataset = Dataset.open(Path(recipe.data.dataset))
    loader = Loader(split_view(dataset, recipe.data.split, "train"), recipe.loader, ("input_ids",))
    location = Cursor(epoch=0, step_in_epoch=int(columns["step"][0]) - 1)
    share = next(iter(loader.shares(location, range(int(columns["lane"][0]), int(columns["lane"][0]) + 1), 1)))
    row = int(share.lanes[0].micro_batches[0].row_ids[0])
    columns["num_rows"][0] -= 1
    columns["digest"][:1] -= mix64(np.array([row], np.uint64))
    buffer = io.BytesIO()
    np.savez(buffer, **columns)
    path.write_bytes(buffer.getvalue())
    if fix_digest:
        old = next(file.sha256 for file in commit.files if file.path == RECEIPTS_NAME)
        previous = ""
        for number, entry in enumerate(log.entries()):  # all entries are linked again, by the new digests
            text, key = (
                entry.to_json().replace(old, sha256_of_bytes(buffer.getvalue())),
                f"log/{number:08d}.json",
            )
            data, known = entry_text(type(entry).from_json(text, source=key), key, previous)
            (Path(run_dir) / key).write_bytes(data)
            previous = known.sha256
    return row


@pytest.mark.parametrize("fix_digest", [False, True])
def test_a_row_taken_out_of_a_receipt_is_named(finished, fix_digest: bool) -> None:
    run, log, _ = finished
    row = tamper_with_receipts(run.run_dir, log, fix_digest=fix_digest)
    report = audit_run(run, CommitLog(open_store(run.store_url)))
    assert report.verdict == "fail"
    assert [line.split(":")[0] for line in report.missing] == [f"row {row}"]
    assert bool(report.problems) is not fix_digest


def test_a_shard_that_changed_after_indexing_is_named(finished) -> None:
    run, log, dataset = finished
    shard = sorted((dataset / "shards").glob("*.parquet"))[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    report = audit_run(run, log)
    assert report.verdict == "fail"
    assert any(shard.name in problem for problem in report.problems)


def test_another_dataset_in_its_place_is_the_one_thing_that_is_said(finished) -> None:
    """Missing and repeated rows of a dataset that the run never saw mean nothing."""
    run, log, dataset = finished
    (dataset / "manifest.json").unlink()
    shutil.rmtree(dataset / "splits")
    shard = min((dataset / "shards").glob("*.parquet"))
    shard.unlink()
    index_dataset(str(dataset / "shards"), dataset)
    report = audit_run(run, log)
    assert report.verdict == "fail" and not (report.missing or report.repeated)
    assert len(report.problems) == 1
    assert f"the run learned {run.dataset_fingerprint[:12]}…. Restore that one" in report.problems[0]


def test_deleted_receipts_leave_their_steps_unproved(finished) -> None:
    run, log, _ = finished
    commit = log.commits()[-1]
    (Path(run.run_dir) / commit.folder / RECEIPTS_NAME).unlink()
    report = audit_run(run, log)
    assert report.verdict == "fail"
    assert any("not proved" in problem for problem in report.problems)


def test_a_damaged_row_group_stops_a_run_or_is_counted_by_the_audit(run_it, tiny_dataset: Path, tmp_path) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(tiny_dataset, copy)
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(tiny_dataset), str(copy)))
    # The split's column is read from the cache; only token chunks are damaged.
    run_it(data__dataset=str(copy), trainer__max_steps=1)
    dataset = Dataset.open(copy)
    shard = copy / "shards" / dataset.shard_path(2)
    data = bytearray(shard.read_bytes())
    data[int(dataset.groups.chunk_start[2, 0]) + 8] ^= 1
    shard.write_bytes(data)

    from assay.base.errors import DamagedDataError

    with pytest.raises(DamagedDataError, match=r"row group 2, column 'input_ids.*on_damage=quarantine"):
        run_it(data__dataset=str(copy))
    run, log, _ = run_it(data__dataset=str(copy), loader__on_damage="quarantine", world_sizes=(2,))
    report = audit_run(run, log)
    assert report.verdict == "pass"
    assert 0 < report.rows_quarantined <= 30
    assert report.rows_trained + report.rows_quarantined == report.rows_expected


@pytest.mark.slow
def test_damage_that_is_found_in_the_second_epoch_takes_nothing_away_from_the_first(
    run_it, tiny_dataset: Path, tmp_path
) -> None:
    """A group is learned in epoch 0, then its bytes rot, and a rank is killed: attempt 2 quarantines it."""
    copy = tmp_path / "rotting"
    shutil.copytree(tiny_dataset, copy)
    dataset = Dataset.open(copy)
    shard = copy / "shards" / dataset.shard_path(2)

    class Rot:
        """Strikes when the rank is killed."""

        def attempt_began(self, attempt, pids) -> None:
            if attempt.attempt == 2:
                data = bytearray(shard.read_bytes())
                data[int(dataset.groups.chunk_start[2, 0]) + 8] ^= 1
                shard.write_bytes(data)

        def tick(self, attempt) -> None: ...
        def attempt_ended(self, attempt) -> None: ...

    run, _, attempts = run_it(
        data__dataset=str(copy),
        loader__on_damage="quarantine",
        trainer__epochs=2,
        trainer__commit_every=4,  # at the ends of windows
        kills=[(1, 0)],
        observers=[Rot()],
    )
    assert len(attempts) == 2
    report = audit_run(run, CommitLog(open_store(run.store_url)))
    assert (report.verdict, report.problems, report.missing) == ("pass", (), ())
    assert 0 < report.rows_quarantined <= 60
    assert report.rows_trained + report.rows_quarantined == report.rows_expected


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_last_commits_weights_are_audited_and_with_deep_those_of_all(finished) -> None:
    run, log, _ = finished
    *_, earlier, last = log.commits()
    assert any(f"the commit of step {earlier.step} (" in line for line in audit_run(run, log).not_checked)
    flip(Path(run.run_dir) / earlier.folder / earlier.files[0].path)
    assert audit_run(run, log).verdict == "pass"
    (problem,) = audit_run(run, log, weights="all").problems
    assert f"the commit of step {earlier.step} has changed" in problem
    weights = Path(run.run_dir) / last.folder / "__0_0.distcp"
    weights.unlink()
    (problem,) = audit_run(run, log).problems
    assert "__0_0.distcp is missing" in problem
    assert any("the weights of the commits" in line for line in audit_run(run, log, weights="none").not_checked)


def test_an_audit_that_looked_at_less_leaves_what_a_deeper_one_found_on_record(finished) -> None:
    run, log, _ = finished
    home, weights = Home.from_environment(), Path(run.run_dir) / log.commits()[-1].folder / "__0_0.distcp"
    home.open_ledger().close()  # which the copy left behind

    def audited(*, quick: bool = False) -> tuple[str, str, str]:
        """What is found, and the verdict and depth of what is on record then."""
        depth: Any = "none" if quick else "last"
        found, known, unkept = audit_and_record(home, run.run_id, check_shards=not quick, weights=depth)
        with home.open_ledger() as ledger:
            retained = saved_audit(run.run_dir)
            assert retained is not None and retained == ledger.audit(run.run_id)
        assert (retained, unkept) == (found if known is None else known, "")
        assert retained.step == log.commits()[-1].step
        return found.verdict, retained.verdict, retained.weights

    intact = weights.read_bytes()
    flip(weights)
    assert audited() == ("fail", "fail", "last")
    # Of the receipts it passes, which is all that it read.
    assert audited(quick=True) == ("pass", "fail", "last")
    weights.write_bytes(intact)
    assert audited() == ("pass", "pass", "last")
    (Path(run.run_dir) / log.commits()[0].folder / RECEIPTS_NAME).unlink()
    assert audited(quick=True) == ("fail", "fail", "none")


def test_a_quick_audit_says_what_a_deeper_one_has_found(finished, capfd: pytest.CaptureFixture[str]) -> None:
    run, log, _ = finished
    Home.from_environment().open_ledger().close()
    *_, earlier, _ = log.commits()
    flip(Path(run.run_dir) / earlier.folder / earlier.files[0].path)

    def called(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        output = capfd.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    assert called("runs", "audit", run.run_id, "--deep")[0] == 1
    for depth in ((), ("--quick",)):
        code, out, err = called("runs", "audit", run.run_id, *depth)
        assert (code, out.splitlines()[0]) == (
            1,
            f"PASS of what was checked; FAIL on record  {run.run_id}",
        )
        assert f"the record keeps a more thorough audit, fail up to step {log.commits()[-1].step}" in err
    assert f"assay runs audit {run.run_id} --deep" in called("runs", "show", run.run_id)[1]


def test_an_audit_needs_neither_data_nor_ledger_nor_a_folder_to_write_to(finished, monkeypatch, capsys) -> None:
    run, log, dataset = finished
    monkeypatch.setenv("ASSAY_LEDGER", "sqlite:////nowhere/ledger.db")
    (Path(run.run_dir) / AUDIT_FILE).mkdir()  # as good as a read-only folder, for root too
    home = Home.from_environment()
    report, _, unkept = audit_and_record(home, run.run_id, check_shards=True, weights="last")
    assert report.verdict == "pass"
    assert AUDIT_FILE in unkept
    (dataset / "shards").rename(dataset / "elsewhere")
    report, _, _ = audit_and_record(home, run.run_id, check_shards=True, weights="last")
    assert report.verdict == "pass"
    assert any("none of them is there" in line for line in report.not_checked)
    dataset.rename(dataset.with_name("gone"))
    report, _, _ = audit_and_record(home, run.run_id, check_shards=True, weights="last")
    assert (report.verdict, report.problems) == ("incomplete", ())
    assert any("which rows were trained" in line for line in report.not_checked)
    with pytest.raises(SystemExit) as ended:
        main(["runs", "audit", run.run_id])
    shown = capsys.readouterr().out
    assert ended.value.code == 3
    assert f"{report.rows_trained:,} rows by the receipts; the expected number is unknown" in shown
    flip(Path(run.run_dir) / log.commits()[-1].folder / "__0_0.distcp")
    report, _, _ = audit_and_record(home, run.run_id, check_shards=True, weights="last")
    assert report.verdict == "fail"


def test_strays_and_damaged_accounts_are_named_and_stop_nobody(finished) -> None:
    run, log, _ = finished
    folder = Path(run.run_dir)
    (folder / "log" / "notes.txt").write_text("mine")
    (folder / "checkpoints" / "best").mkdir()
    (folder / "checkpoints" / "best" / "weights").write_text("mine")
    (folder / log.commits()[-1].folder / "notes.txt").write_text("mine")
    report = audit_run(run, CommitLog(open_store(run.store_url)))
    assert (report.verdict, report.problems) == ("pass", ())
    assert sorted(report.strays) == sorted(
        ["log/notes.txt", "checkpoints/best/weights", f"{log.commits()[-1].folder}/notes.txt"]
    )
    again = CommitLog(open_store(run.store_url))
    again.begin_attempt(world_size=1, now_s=0.0)
    again.sweep()
    assert (folder / "checkpoints" / "best" / "weights").is_file()
    record = attempt_path(folder, 1)
    record.write_bytes(record.read_bytes()[:40])
    assert saved_attempts(folder) == []
    (problem,) = audit_run(run, log).problems
    assert problem.startswith(f"{record}: not JSON")
