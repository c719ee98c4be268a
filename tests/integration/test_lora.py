"""Adapters trained by real processes, killed and resized; their commits hold nothing that stays as it was."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.evaluation.suite.commit_model import load_committed
from assay.launch.ranks.supervisor import RestartPolicy
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from integration.test_sft import digest, eventful
from language_rows import language_dataset, sft_recipe, small_model
from preference_rows import preference_dataset, preference_recipe

LORA = {"rank": 2, "dropout": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_adapters_end_with_the_same_weights_and_commits_hold_them_alone(
    method: str, requires: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requires("peft", importlib.util.find_spec("peft") is not None, "not installed here (make test-lora)")
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = fine_tuning(tmp_path) if method == "sft" else preferences(tmp_path)
    undisturbed = digest(tree, "undisturbed", RestartPolicy())
    assert digest(tree, "eventful", eventful()) == undisturbed
    run = Home.from_environment().run("eventful")
    log = CommitLog(open_store(run.store_url))
    commit = log.commits()[-1]
    names = log.store.get(f"{commit.folder}/.metadata")
    assert b"q_proj.lora_A" in names and b"embed_tokens" not in names and b"base_layer" not in names
    load_committed(run, commit, log.store)  # its digest is that of the commit


def fine_tuning(folder: Path) -> dict[str, Any]:
    """Beside weights that are drawn from the run's seed."""
    return sft_recipe(language_dataset(folder / "rows"), method={"model": small_model(lora=LORA)})


def preferences(folder: Path) -> dict[str, Any]:
    """Beside those of a folder, which with the adapters switched off are the reference."""
    base = save_tiny(LlamaForCausalLM, folder / "base", seed=3)
    method = {"type": "dpo", "model": {"type": "pretrained", "path": str(base), "lora": LORA}}
    return preference_recipe(preference_dataset(folder / "rows"), method)
