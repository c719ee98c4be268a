"""What an older assay left is shown, audited, resumed, replayed and compared by this one."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.elastic.processor import processor_here
from older_home import unpack_home

COMMIT = "ec8e02d"
RUNS = ["candidate", "finished", "small-baseline-s0", "small-baseline-s1", "small-faster-s0", "small-faster-s1"]
END = "1ca55eddbcac3003ed713742ba6204b809fcb6bcdfc79126ecd1683d66ac2b12"
"""Of the weights with which `finished` ended, and with which `unfinished`, of the same recipe, has to."""
MADE_ON = ("GenuineIntel", "MKL AVX512, ATen AVX512")
"""Another kind of CPU, be it of another maker alone, sums in another order: there the bits of the older numbers
cannot come out again."""

Assay = Callable[..., tuple[int, str, str]]
is_same_cpu = all(part in processor_here(os.environ).instructions for part in MADE_ON)
same_cpu = pytest.mark.skipif(not is_same_cpu, reason=f"the older numbers are of {', '.join(MADE_ON)}")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_home(tmp_path_factory.mktemp("older"), COMMIT)


@pytest.fixture
def home(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ASSAY_HOME", str(unpacked))
    monkeypatch.delenv("ASSAY_LEDGER", raising=False)
    return unpacked


@pytest.fixture
def assay(home: Path, capfd: pytest.CaptureFixture[str]) -> Assay:
    """Run a command on the older home: its exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        output = capfd.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run


def test_its_runs_are_listed_and_shown_with_their_evaluation_and_audit(assay: Assay) -> None:
    listed = json.loads(assay("runs", "--json")[1])
    assert sorted(each["run_id"] for each in listed) == sorted([*RUNS, "unfinished"])
    shown = json.loads(assay("show", "finished", "--json")[1])
    assert (shown["status"], shown["step"], shown["weights_digest"]) == ("succeeded", 10, END)
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["killed", "succeeded"]
    assert shown["audit"]["verdict"] == "pass"
    assert shown["evaluation"]["overall"]["num_rows"] == 60
    assert json.loads(assay("show", "unfinished", "--json")[1])["step"] == 7


@pytest.mark.parametrize("run_id", RUNS)
def test_its_receipts_prove_that_each_row_was_learned_once(assay: Assay, run_id: str) -> None:
    code, output, errors = assay("audit", run_id, "--json")
    assert code == 0, errors
    report = json.loads(output)
    assert (report["verdict"], report["rows_learned"]) == ("pass", 160)


@same_cpu
def test_a_step_of_it_comes_out_again_in_every_bit(assay: Assay) -> None:
    code, output, errors = assay("replay", "finished", "--step", 6, "--through", 8, "--json")
    assert code == 0, errors
    report = json.loads(output)
    assert report["verdict"] == "equal"
    assert report["compared"] > 3
    assert report["recorded_code_version"].endswith(COMMIT)


@pytest.mark.slow
def test_after_a_move_it_is_audited_and_resumed_to_the_same_end_where_it_lies_now(
    tmp_path: Path, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = unpack_home(tmp_path / "written", COMMIT)
    home = tmp_path / "moved" / "runs"
    shutil.move(written.parent, home.parent)
    monkeypatch.setenv("ASSAY_HOME", str(home))
    monkeypatch.setenv("ASSAY_LEDGER", f"sqlite:///{home / 'ledger.db'}")
    audited = assay("audit", "finished", "--json")
    assert (audited[0], json.loads(audited[1])["rows_learned"]) == (0, 160)
    assert assay("train", "--resume", "unfinished")[0] == 0
    shown = json.loads(assay("show", "unfinished", "--json")[1])
    assert (shown["run_dir"], shown["step"]) == (str(home / "unfinished"), 10)
    assert (shown["status"], shown["audit"]["verdict"]) == ("succeeded", "pass")
    if is_same_cpu:
        assert shown["weights_digest"] == END
    assert [attempt["start_step"] for attempt in shown["attempts"]] == [0, 7]
    assert assay("compare", "finished", "candidate")[0] == 0
    assert not written.parent.exists()


def test_a_copy_of_it_does_not_go_on(tmp_path: Path, assay: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    written = unpack_home(tmp_path / "written", COMMIT)
    shutil.copytree(written.parent, tmp_path / "copy")
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "copy" / "runs"))
    entries = {path: path.read_bytes() for path in tmp_path.glob("*/runs/unfinished/log/*")}
    code, _, errors = assay("train", "--resume", "unfinished")
    assert code == 2
    assert f"is a copy of run 'unfinished', which lies in {written / 'unfinished'}" in errors
    assert {path: path.read_bytes() for path in tmp_path.glob("*/runs/unfinished/log/*")} == entries


@pytest.mark.slow
def test_its_campaign_goes_on_as_it_was_declared_and_trains_nothing_again(assay: Assay, home: Path) -> None:
    attempts = sorted(home.glob("small-*/attempts/*"))
    code, _, errors = assay("campaign", "run", home.parent / "campaign.yaml")
    assert code == 0, errors
    assert sorted(home.glob("small-*/attempts/*")) == attempts
    for check in ([], ["--check"]):
        code, _, errors = assay("campaign", "run", home.parent / "campaign.yaml", "seeds=3", *check)
        assert code == 2
        assert "was declared with another seeds" in errors


def test_its_runs_are_compared(assay: Assay) -> None:
    code, output, errors = assay("compare", "finished", "candidate", "--json")
    assert code == 0, errors
    (compared,) = json.loads(output)
    assert compared["difference"]["value"] == pytest.approx(0.3672, abs=1e-4)


def test_its_dataset_is_shown(assay: Assay, home: Path) -> None:
    code, output, errors = assay("data", "show", home.parent / "dataset")
    assert code == 0, errors
    assert "300" in output


@pytest.mark.parametrize(
    "command",
    [("audit", "finished"), ("replay", "finished", "--step", "6"), ("train", "--resume", "finished")],
    ids=lambda command: command[0],
)
def test_a_recipe_with_a_key_of_a_later_assay_ends_in_a_sentence(
    tmp_path: Path, assay: Assay, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    later = unpack_home(tmp_path, COMMIT)
    path = later / "finished" / "run.json"
    tree = json.loads(path.read_text())
    tree["recipe"]["trainer"]["bfloat8"] = True
    path.write_text(json.dumps(tree | {"code_version": "7.1+gabc"}))
    monkeypatch.setenv("ASSAY_HOME", str(later))
    code, _, errors = assay(*command)
    assert code == 2
    (line,) = errors.strip().splitlines()
    assert line.startswith(
        "error: run 'finished': its recipe, written by assay 7.1+gabc: key 'trainer.bfloat8' is unknown here"
    )
