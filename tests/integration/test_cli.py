"""What a person at a terminal gets: output, errors that name the thing and the cure, exit codes."""

import json
from pathlib import Path

import pytest
import yaml

from assay.store.home import Home
from in_process import assay as run


def test_train_show_audit_report_and_compare_from_the_command_line(recipe: Path, capfd, tmp_path: Path) -> None:
    for name, workers in (("baseline", 1), ("candidate", 2)):
        assert run("train", recipe, "--run-id", name, "--workers", workers) == 0
    capfd.readouterr()
    assert run("runs", "show", "candidate", "--json") == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["status"] == "succeeded"
    assert shown["world_sizes"] == [2]
    assert shown["audit"]["verdict"] == "pass"
    assert shown["step"] == 20
    assert {"loss", "tokens"} <= set(shown["metrics"])
    held_s = sum(item["held_s"] * item["world_size"] for item in shown["attempts"])
    assert sum(shown["device_seconds"].values()) == pytest.approx(held_s, rel=1e-3)
    assert run("runs", "show", "baseline", "--json") == 0
    assert json.loads(capfd.readouterr().out)["weights_digest"] == shown["weights_digest"]
    assert run("runs", "audit", "candidate") == 0
    assert run("runs") == 0
    assert run("report", "candidate", "--out", tmp_path / "report.html") == 0
    assert run("decide", "compare", "baseline", "candidate", "--json", "--out", tmp_path / "comparison.html") == 0
    compared = json.loads(capfd.readouterr().out.strip().splitlines()[-1])[0]
    assert (compared["verdict"], compared["weights_equal"]) == ("pass", True)
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loader.lane=8", "loader.lane (override): no such key. Perhaps you meant 'loader.lanes'"),
        ("loader.lanes=6", "lanes=6 is not a power of two; use 8"),
        ("loader.global_batch_size=30", "not a multiple of lanes=8; use 32"),
        ("method.categorical_columns=[country]", "column 'country' (in method) is not in dataset"),
        ("method.encoder.max_tokens=10", "the longest row of dataset"),
        ("method.encoder.vocab_size=100", "holds token"),
        ("data.split.column=day", "data.split.column 'day' is not in dataset"),
        ("data.dataset=nowhere", "no dataset there"),
        ("trainer.optimizer.learning_rate=fast", "trainer.optimizer.learning_rate (override)"),
        ("loader.layout={type: packed, sequence_tokens: 128}", "method 'classify' does not support it"),
        ("loader.layout={type: line, tokens: 128}", "method 'classify' does not support it"),
        ("nonsense", "'nonsense' is not an override"),
        (
            "trainer.optimizer.schedule.warmup_steps=500",
            "the run has 20 steps: the learning rate would never reach",
        ),
        ("trainer.evaluate_every=21", "the run has 20 steps: there would be no evaluation before the end"),
        ("trainer.lr=1e-3", "Perhaps you meant 'trainer.optimizer.learning_rate'"),
    ],
)
def test_a_wrong_recipe_is_refused_before_anything_is_written(
    recipe: Path, capfd, tmp_path: Path, override: str, message: str
) -> None:
    assert run("train", recipe, override) == 2
    assert message in capfd.readouterr().err
    assert not list((tmp_path / "home").glob("*/run.json"))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"type": "kill", "rank": 2, "step": 5}, "faults.0 (kill): there is no rank 2 among 2 workers"),
        ({"type": "kill", "step": 21}, "step 21 is never reached, the run ends at step 20"),
        ({"type": "kill", "step": 0}, "faults.0.step: expected more than 0"),
        ({"type": "explode", "step": 5}, "'explode'"),
        ({"type": "kill", "step": 5, "phase": "lost"}, "faults.0.phase: expected 'startup'"),
        ({"type": "kill", "step": 5, "when": "now"}, "yaml:4): no such key. Known here: attempt, step, "),
        ("a kill", "faults.0: "),
    ],
)
def test_a_wrong_fault_plan_is_refused_before_anything_is_written(
    recipe: Path, capfd, tmp_path: Path, fault: object, message: str
) -> None:
    plan = tmp_path / "faults.yaml"
    plan.write_text(yaml.safe_dump({"faults": [fault]}))
    assert run("train", recipe, "--workers", 2, "--faults", plan) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_a_fault_plan_strikes_and_the_run_ends_as_if_nothing_had_happened(
    recipe: Path, capfd, tmp_path: Path, undisturbed: str
) -> None:
    plan = tmp_path / "faults.yaml"
    plan.write_text("faults: [{type: kill, rank: 1, step: 12, phase: checkpoint, after_s: 0.002}]")
    automatic = ("trainer.commit_every=auto", "--run-id", "struck", "--workers", 2, "--json")
    assert run("train", recipe, *automatic, "--faults", plan) == 0
    shown = json.loads(capfd.readouterr().out)
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["killed", "succeeded"]
    assert (shown["weights_digest"], shown["audit"]["verdict"]) == (undisturbed, "pass")


def test_a_fault_whose_attempt_did_not_come_is_named_at_the_end(recipe: Path, tmp_path: Path, capfd) -> None:
    plan = tmp_path / "plan.yaml"
    slow = {"type": "slow", "step": 1, "extra_s": 0.01, "num_steps": 1}
    plan.write_text(yaml.safe_dump({"faults": [slow, {"type": "kill", "attempt": 2, "step": 1}]}))
    assert run("train", recipe, "trainer.max_steps=2", "--faults", plan) == 0
    output = capfd.readouterr().err
    assert "faults.1 (kill) did not happen: it is planned for attempt 2, but the last one was attempt 1" in output
    assert "faults.0" not in output


def test_a_wrong_number_of_workers_and_an_unknown_run_are_refused(recipe: Path, capfd) -> None:
    assert run("train", recipe, "--workers", 9) == 2
    assert "--workers 9: loader.lanes=8 can be shared by 1 to 8 workers" in capfd.readouterr().err
    assert run("runs", "show", "no-such-run") == 2
    assert run("train", "--resume", "no-such-run") == 2
    assert run("train") == 2


def test_an_unreachable_store_is_exit_code_75(recipe: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ASSAY_STORE_RETRY_S": "1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    assert run("train", recipe, "--store", "s3://bucket/run") == 75
    assert "AWS_ENDPOINT_URL" in capfd.readouterr().err
    assert run("data", "index", "s3://bucket/rows", "--out", "x") == 75
    assert "s3://bucket/rows" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("s3://KEY:hush@bucket/run", "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket/run?token=hush", "the URL is recorded, and everybody who reads the record can read it"),
        ("s3://bucket/run\x1b[2J", "it holds invisible characters"),
    ],
)
def test_a_store_whose_url_is_no_ones_to_read_is_refused_before_it_is_on_record(
    recipe: Path, capfd, store: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("train", recipe, "--store", store, "--run-id", "told") == 2
    err = capfd.readouterr().err
    assert message in err and "hush" not in err
    assert run("runs", "show", "told") == 2
    assert run("data", "index", store, "--out", "x") == 2
    assert message in capfd.readouterr().err
    monkeypatch.setenv("ASSAY_LEDGER", "mysql://me:hush@host/runs")
    assert run("runs") == 2
    assert "hush" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_run_whose_log_was_moved_away_is_refused_and_fails_its_audit(recipe: Path, capfd, tmp_path: Path) -> None:
    assert run("train", recipe, "--run-id", "robbed", "--workers", 2) == 0
    folder = tmp_path / "home" / "robbed"
    (folder / "log").rename(tmp_path / "log")
    before = contents(folder)
    capfd.readouterr()
    assert run("train", "--resume", "robbed", "--workers", 2) == 1
    output = capfd.readouterr().err
    assert "log/ is missing or empty" in output and "Put it back" in output and "Traceback" not in output
    assert run("train", "--resume", "robbed", "--on", "background") == 1
    assert run("runs", "audit", "robbed") == 1
    assert "log/ is missing or empty" in capfd.readouterr().out
    after = contents(folder)
    changed = {path.name for path in after.keys() | before.keys() if after.get(path) != before.get(path)}
    assert changed == {"audit.json"}
    (tmp_path / "log").rename(folder / "log")
    assert run("train", "--resume", "robbed") == 0
    assert run("runs", "audit", "robbed") == 0


@pytest.mark.slow
def test_a_run_that_never_began_is_incomplete_and_begins_when_resumed(new_tiny_run, capfd) -> None:
    unbegun = new_tiny_run()
    with Home.from_environment().open_ledger() as ledger:
        ledger.record_run(unbegun)
    assert run("runs", "audit", unbegun.run_id) == 3
    assert "INCOMPLETE" in capfd.readouterr().out
    assert run("train", "--resume", unbegun.run_id) == 0
    assert run("runs", "audit", unbegun.run_id) == 0
    assert "PASS" in capfd.readouterr().out


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
