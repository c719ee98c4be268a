"""Pipelines with real processes: killed in every stage, they end as undisturbed ones do."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from assay.cli.main import main
from assay.evals.commit_model import load_committed
from assay.records.exported_model import EXPORT_FILE, ExportedModel
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.launches import saved_launches
from assay.store.objects import open_store
from in_process import AssayAt
from integration.test_language_export import KEYS, MODEL, PROMPTS, built, chat, conversations, preferences

__all__ = ["conversations", "preferences"]
COMMAND = [sys.executable, "-c", "from assay.cli.main import main; main()", "train"]
GRADER = {
    "type": "string_check", "name": "names-it", "operation": "like",
    "input": "{{ sample.output_text }}", "reference": "{{ item.wanted }}",
}  # fmt: skip
SUITE = {
    "name": "sums",
    "benchmarks": [
        {
            "type": "generation", "name": "named", "items": "items.jsonl", "grader": GRADER,
            "sampling": {"max_tokens": 6},
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="session")
def prompts(conversations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [
        {
            "messages": [{"role": "user", "content": prompt}],
            "item": {"wanted": str(index % 3)},
            "topic": str(index),
        }
        for index, prompt in enumerate(PROMPTS)
    ]
    for line in lines:
        line["first"] = 1
    return built(tmp_path_factory.mktemp("prompts"), "prompts", lines, tokenizer=str(conversations))


def recipe(dataset: Path, method: dict[str, Any], steps: int = 4) -> dict[str, Any]:
    return {
        "data": {"dataset": str(dataset), "split": {"type": "hash", "validation_fraction": 0.2}},
        "loader": {"lanes": 2, "global_batch_size": 8, "window_rows": 16, "threads": 1},
        "method": method,
        "trainer": {
            "epochs": 4, "max_steps": steps, "commit_every": 1, "evaluate_every": 2,
            "optimizer": {"learning_rate": 1e-2},
        },
    }  # fmt: skip


@pytest.fixture
def stages(
    conversations: Path, preferences: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """SFT, a reward model and DPO that begin with it, GRPO that begins with DPO, is held to SFT and paid by the
    reward model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    (tmp_path / "sft.yaml").write_text(
        yaml.safe_dump({"name": "sft", **recipe(conversations, {"type": "sft", "train_on": "spans", "model": MODEL})})
    )
    items = [{"prompt": prompt, "wanted": str(index % 3)} for index, prompt in enumerate(PROMPTS[:24])]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, items)))
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(SUITE))
    grpo = {
        "type": "grpo",
        "rewards": [{"grader": GRADER}, {"run": "stage:reward", "weight": 0.1}],
        "reference": {"path": "stage:sft"},
        "kl": 0.05,
        "group_size": 2,
        "sampling": {"max_tokens": 6},
    }
    dpo = {"type": "dpo"}
    return {
        "name": "sums",
        "stages": [
            {"name": "sft", "recipe": "sft.yaml"},
            {"name": "reward", "from": "sft", "patch": recipe(preferences, {"type": "reward"})},
            {"name": "dpo", "from": "sft@best", "patch": recipe(preferences, dpo)},
            {"name": "grpo", "from": "dpo", "patch": recipe(prompts, grpo, steps=3)},
        ],
        "seeds": 2,
        "budget_device_hours": 1,
        "compare": {
            "benchmarks": [{"type": "suite", "name": "named", "suite": "suite.yaml"}],
            "rule": {"primary": ["named"], "least_effect": 0.05},
        },
    }


def written(tree: dict[str, Any], folder: Path) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def kill_in_the_midst(path: Path, home: Path, run_id: str) -> None:
    """The whole group, once a run has committed and is not done."""
    process = subprocess.Popen([*COMMAND, str(path)], start_new_session=True, stderr=subprocess.DEVNULL)
    log, deadline = CommitLog(open_store(str(home / run_id))), time.monotonic() + 300
    while not log.commits():
        assert process.poll() is None, "the pipeline ended before it could be killed"
        assert time.monotonic() < deadline, f"no commit of {run_id}"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def weights(home: Path) -> dict[str, str]:
    """Run -> the digest with which it ended."""
    finished = {
        path.parent.name: CommitLog(open_store(str(path.parent))).finished() for path in home.glob("*/run.json")
    }
    return {run_id: entry.weights_digest for run_id, entry in finished.items() if entry is not None}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_once_in_each_stage_it_ends_as_undisturbed_with_a_model_and_a_memo(
    stages: dict[str, Any], tmp_path: Path
) -> None:
    path, home = written(stages, tmp_path), tmp_path / "home"
    assay = AssayAt(home)
    for stage in ("sft", "reward", "dpo", "grpo"):
        kill_in_the_midst(path, home, f"sums-{stage}-s0")
    printed = assay("train", path).out.splitlines()[-3:]
    *models, memo = map(Path, printed)

    launches = {run.run_id: len(saved_launches(run)) for run in Home.from_environment().runs()}
    assert launches == {f"sums-{item['name']}-s{seed}": 2 - seed for item in stages["stages"] for seed in (0, 1)}
    assert assay("train", path).out.splitlines()[-3:] == printed
    assert {run.run_id: len(saved_launches(run)) for run in Home.from_environment().runs()} == launches

    killed = weights(home)
    AssayAt(tmp_path / "other")("train", path)
    assert weights(tmp_path / "other") == killed and len(killed) == 8

    run = Home.from_environment().run("sums-grpo-s0")
    log = CommitLog(open_store(run.store_url))
    own = load_committed(run, log.commits()[-1], log.store)
    plain = AutoModelForCausalLM.from_pretrained(models[0]).eval()
    ids = torch.tensor([[5, 9, 17, 30, 2]])
    with torch.no_grad():
        output = plain(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]
        assert torch.allclose(output, own(ids).logprobs, atol=1e-5)
    exported = ExportedModel.from_json((models[0] / EXPORT_FILE).read_bytes(), source=models[0])
    assert (exported.run_id, exported.weights_digest) == ("sums-grpo-s0", killed["sums-grpo-s0"])

    text = (memo.parent / "memo.md").read_text()
    assert "of it for stages that are not compared" in text, "the reward model's"
    assert "dpo" in text and "grpo" in text and "2 paired seeds" in memo.read_text()
    shown = assay.json("runs", "show", "sums")
    assert [item["status"] for item in shown["runs"]] == ["succeeded"] * 8
    (last,) = [item for item in shown["runs"] if item["run_id"] == "sums-grpo-s1"]
    assert last["started_from"] == "sums-dpo-s1@4" and last["started_from_digest"] == killed["sums-dpo-s1"]
    assert last["step"] == last["total_steps"] == 3 and last["device_hours"] > 0
    assay("decide", "again", "sums")


def refused(path: Path, home: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What is said of a pipeline that is refused with exit code 2, before anything is written."""
    with pytest.raises(SystemExit) as ended:
        main(["train", str(path), *options])
    assert ended.value.code == 2 and not home.exists()
    return capsys.readouterr().err


def changed(stages: dict[str, Any], index: int, **keys: Any) -> dict[str, Any]:
    """The pipeline with another stage."""
    tree = json.loads(json.dumps(stages))
    tree["stages"][index] |= keys
    return tree


@pytest.mark.slow
def test_what_cannot_work_is_one_error_before_anything_is_written(
    stages: dict[str, Any], prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"

    def error_of(tree: dict[str, Any], *options: str) -> str:
        return refused(written(tree, tmp_path), home, capsys, *options)

    path = written(changed(stages, 1, **{"from": "grpo"}), tmp_path)
    line = 1 + path.read_text().splitlines().index("  from: grpo")
    assert f"line {line}: stage 'reward' names 'grpo' (from), which is not an earlier stage" in error_of(
        changed(stages, 1, **{"from": "grpo"})
    )
    assert "stage 'dpo' names 'dpo' (from)" in error_of(changed(stages, 2, **{"from": "dpo"}))
    assert "names 'rewards' (method.rewards[0].run)" in error_of(
        changed(stages, 3, patch={**stages["stages"][3]["patch"], "method.rewards": [{"run": "stage:rewards"}]})
    )
    assert "'reward', whose model is a reward model" in error_of(changed(stages, 3, **{"from": "reward"}))
    grpo = stages["stages"][3]["patch"]
    assert "which computes no rewards" in error_of(
        changed(stages, 3, patch={**grpo, "method.rewards": [{"run": "stage:sft"}]})
    )
    assert "longest prompt with a completion" in error_of(
        changed(stages, 3, patch={**grpo, "method.sampling.max_tokens": 90})
    )
    lost = error_of(changed(stages, 3, patch={**grpo, "data.dataset": str(tmp_path / "lost")}))
    assert "stage 'grpo'" in lost and "lost" in lost
    (tmp_path / "prompts").mkdir()
    rows = [{"messages": chat(index, "")[:1], "item": {"wanted": "1"}, **KEYS[index]} for index in range(len(PROMPTS))]
    other = built(tmp_path / "prompts", "prompts", rows)
    assert "its tokenizer is not that of dataset" in error_of(
        changed(stages, 3, patch={**grpo, "data.dataset": str(other)})
    )
    (tmp_path / "items.jsonl").rename(tmp_path / "gone.jsonl")
    assert "names items.jsonl, which does not exist" in error_of(stages)
    (tmp_path / "gone.jsonl").rename(tmp_path / "items.jsonl")
    assert "--run-id applies to a single run" in error_of(stages, "--run-id", "mine")
    unmeasured = changed(stages, 1, patch={**stages["stages"][1]["patch"], "trainer.evaluate_every": None})
    unmeasured["stages"][0]["patch"] = {"trainer.evaluate_every": None}
    assert "leave @best out" in error_of(unmeasured)


def test_a_check_says_the_steps_of_every_stage_and_leaves_nothing(
    stages: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", str(written(stages, tmp_path)), "--check"])
    output = capsys.readouterr().out
    assert not ended.value.code and not (tmp_path / "home").exists()
    assert "dpo" in output and "from sft@best" in output and "8 runs" in output and "Nothing was started" in output


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_stage_model_that_rotted_between_two_stages_is_refused_and_exported_again(
    stages: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    two = {**changed(stages, 1), "seeds": 1}
    two["stages"] = [stages["stages"][0], {**stages["stages"][2], "from": "sft"}]
    del two["compare"]
    path, home = written(two, tmp_path), tmp_path / "home"

    def train() -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["train", str(path)])
        return int(ended.value.code or 0), capfd.readouterr().err

    assert train()[0] == 0
    undisturbed = weights(home)
    shutil.rmtree(home / "sums-dpo-s0")  # as if the pipeline had been stopped before
    (file,) = (home / "campaigns" / "sums" / "models").glob(f"sft-*/{name}")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x40
    file.write_bytes(data)
    code, output = train()
    assert code == 1 and f"{file}" in output and f"Remove {file.parent}; it is then exported again" in output
    assert not (home / "sums-dpo-s0").exists()
    shutil.rmtree(file.parent)
    assert train()[0] == 0 and weights(home) == undisturbed
