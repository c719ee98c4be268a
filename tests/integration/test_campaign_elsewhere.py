"""A campaign over arms that assay does not train: scripts that record themselves, and runs that are on record."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from assay.data.dataset.index import index_dataset
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.campaign.folder import newest_decisions
from in_process import AssayAt

SCRIPT = Path(__file__).parent / "recorded_scripts" / "successor_training.py"
RUNS = [f"scripts-{arm}-s{seed}" for seed in (0, 1) for arm in ("baseline", "learns")]
PROGRAM = "from assay.cli.main import main; main()"


@pytest.fixture
def assay_at(tmp_path: Path) -> AssayAt:
    items = [{"prompt": f"n{n}", "choices": [f" n{n + 1}", f" n{(n + 7) % 32}"], "answer": 0} for n in range(16)]
    (tmp_path / "items.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in items))
    benchmark = {"type": "multiple_choice", "name": "successors", "items": "items.jsonl"}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"name": "s", "benchmarks": [benchmark]}))
    return AssayAt(tmp_path / "home")


def command(lr: float) -> str:
    return f"{sys.executable} {SCRIPT} --lr {lr} --seed {{seed}} --out {{out}}"


def declared(folder: Path, **changes: Any) -> Path:
    """Write a campaign's file, by default over two commands."""
    tree = {
        "name": "scripts",
        "question": "Does it have to learn?",
        "command": command(0.0),
        "candidates": [{"name": "learns", "command": command(0.03)}],
        "seeds": 2,
        "budget_device_hours": 1,
        "benchmarks": [{"type": "suite", "name": "successors", "suite": "suite.yaml"}],
        "rule": {"primary": ["successors"], "least_effect": 0.05},
    }
    path = folder / f"{changes.get('name', 'scripts')}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in {**tree, **changes}.items() if value is not None}))
    return path


def killed_once_committed(file: Path, home: Path, run_id: str) -> None:
    """Run a campaign, and kill it and its command once a run has a checkpoint."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ASSAY_HOME": str(home)}
    words = [sys.executable, "-c", PROGRAM, "decide", "run", str(file)]
    process = subprocess.Popen(words, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
    log, until_s = CommitLog(open_store(str(home / run_id))), time.monotonic() + 240
    while not log.commits():
        assert process.poll() is None and time.monotonic() < until_s
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_commands_that_record_their_rows_prove_them_to_the_gate(tmp_path: Path, assay_at: AssayAt) -> None:
    (tmp_path / "shards").mkdir()
    pairs = [[number, number + 1] for number in range(1, 32)]
    pq.write_table(pa.table({"input_ids": pa.array(pairs, pa.list_(pa.int32()))}), tmp_path / "shards" / "a.parquet")
    index_dataset(str(tmp_path / "shards"), tmp_path / "numbers", needs_label=False)
    rows = f" --rows {tmp_path / 'numbers'}"
    candidate = {"name": "learns", "command": command(0.03) + rows}
    file, home = declared(tmp_path, command=command(0.0) + rows, candidates=[candidate]), Home.at(tmp_path / "home")
    killed_once_committed(file, home.folder, "scripts-learns-s0")
    assay_at("decide", "run", file)
    decision = newest_decisions(home.campaigns / "scripts")["learns"]
    assert {run.audit_verdict for run in decision.runs} == {"pass"}
    assert sum(run.num_attempts for run in decision.runs) == 5
    (clause,) = [clause for gate in decision.gates for clause in gate.clauses if clause.type == "audit"]
    assert (clause.verdict, clause.value) == ("pass", 4.0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_commands_are_arms_and_their_runs_are_arms_of_the_next_campaign(tmp_path: Path, assay_at: AssayAt) -> None:
    file, home = declared(tmp_path), Home.at(tmp_path / "home")
    checked = assay_at("decide", "run", file, "--check").out
    assert "at most 4 runs, one look, at 2 seeds" in checked and not home.has_run("scripts-baseline-s0")
    killed_once_committed(file, home.folder, "scripts-learns-s0")
    memo = assay_at.json("decide", "run", file)
    runs = {run_id: assay_at.json("runs", "show", run_id) for run_id in RUNS}
    assert {run_id: len(run["attempts"]) for run_id, run in runs.items()} == {
        "scripts-baseline-s0": 1, "scripts-learns-s0": 2, "scripts-baseline-s1": 1, "scripts-learns-s1": 1,
    }  # fmt: skip
    assert runs["scripts-learns-s0"]["attempts"][1]["start_step"] >= 10
    assert runs["scripts-learns-s1"]["recipe"]["params"] == {"lr": 0.03, "seed": 1}

    decision = newest_decisions(home.campaigns / "scripts")["learns"]
    assert decision.recommendation == "narrow" and decision.effect.value > 0.3
    assert decision.patch == {"command": command(0.03)}
    for run in decision.runs:
        last = CommitLog(open_store(str(home.run_dir(run.run_id)))).commits()[-1]
        assert (run.weights_digest, last.step, run.audit_verdict) == (last.weights_digest, 40, "rows: not observed")
    (clause,) = [clause for gate in decision.gates for clause in gate.clauses if clause.type == "audit"]
    assert (clause.verdict, clause.value) == ("undecided", 0.0)
    assert "rows: not observed" in (home.campaigns / "scripts" / "memo.md").read_text(), memo
    assert decision.spent_s == pytest.approx(sum(run.device_s for run in decision.runs)) and decision.spent_s > 1

    named = {"command": None, "runs": ["scripts-baseline-s0", "scripts-baseline-s1"]}
    candidate = {"name": "learns", "runs": ["scripts-learns-s0", "scripts-learns-s1"]}
    rule = {"primary": ["successors"], "least_effect": 0.05, "drill": None}
    assay_at("decide", "run", declared(tmp_path, name="named", candidates=[candidate], rule=rule, **named))
    again = newest_decisions(home.campaigns / "named")["learns"]
    assert (again.effect, again.patch) == (decision.effect, {"runs": candidate["runs"]})
    assert "drill: audit" not in {clause.name for gate in again.gates for clause in gate.clauses}
    for run_id in RUNS:
        num_starts = (home.run_dir(run_id) / "out" / "starts").read_text().count("started")
        assert num_starts == len(runs[run_id]["attempts"]), "nothing was trained again"
    for name in ("scripts", "named"):
        assay_at("decide", "again", name)
        assay_at("decide", "show", name)

    lines = assay_at("eval", "work", "scripts-learns-s0", "--suite", tmp_path / "suite.yaml", "--json").out.splitlines()
    scores = {result["step"]: result["score"]["value"] for result in map(json.loads, lines)}
    assert sorted(scores) == [10, 20, 30, 40] and scores[40] > 0.8, "of each checkpoint that is there"
