"""Adapters trained by real processes, killed and resized; their commits hold nothing that stays as it was."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.elastic.supervisor import RestartPolicy
from assay.evals.commit_model import load_committed
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from completions_server import serving
from method_runs import LORA, digest, eventful, method_recipe
from one_rank import train_one_rank
from prompt_rows import grpo_recipe, prompt_dataset


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sft", "reward", "dpo", "grpo"])
def test_adapters_end_with_the_same_weights_and_commits_hold_them_alone(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = method_recipe(method, tmp_path, lora=LORA)
    undisturbed = digest(tree, "undisturbed", RestartPolicy())
    assert digest(tree, "eventful", eventful()) == undisturbed
    run = Home.from_environment().run("eventful")
    log = CommitLog(open_store(run.store_url))
    commit = log.commits()[-1]
    names = log.store.get(f"{commit.folder}/.metadata")
    assert b"q_proj.lora_A" in names and b"embed_tokens" not in names and b"base_layer" not in names
    load_committed(run, commit, log.store)  # its digest is that of the commit


@pytest.mark.slow
def test_an_engine_of_another_process_draws_from_the_adapters_added_into_what_it_loads(
    tmp_path: Path,
) -> None:
    base, handover = save_tiny(LlamaForCausalLM, tmp_path / "base", seed=3), tmp_path / "handover"
    handover.mkdir()
    with serving(base) as engine:
        started = engine.named
        method = {
            "model": {"type": "pretrained", "path": str(base), "lora": {"rank": 2}},
            "sampler": {"type": "remote", "url": engine.url, "model": engine.model, "folder": str(handover)},
        }
        trainer = {"max_steps": 3, "commit_every": 3, "optimizer": {"learning_rate": 1e-2}}
        tree = grpo_recipe(prompt_dataset(tmp_path / "prompts"), base, trainer=trainer, method=method)
        steps = train_one_rank(tree, tmp_path / "run").steps
        [folder] = handover.iterdir()
        assert started != engine.named == folder.name, "of what it really has, and not the weights of the first step"
    assert all(step["logprob_gap"] < 2e-6 for step in steps) and len(steps) == 3
    written = {*AutoModelForCausalLM.from_pretrained(folder).state_dict()}
    assert written == {*AutoModelForCausalLM.from_pretrained(base).state_dict()}, "no adapters beside them"
