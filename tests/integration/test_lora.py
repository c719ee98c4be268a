"""Adapters trained by real processes, killed and resized; their commits hold nothing that stays as it was."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.evaluation.suite.commit_model import load_committed
from assay.launch.ranks.supervisor import RestartPolicy
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from method_runs import LORA, digest, eventful, method_recipe


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sft", "reward", "dpo", "grpo"])
def test_adapters_end_with_the_same_weights_and_commits_hold_them_alone(
    method: str, requires: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requires("peft", importlib.util.find_spec("peft") is not None, "not installed here (make test-lora)")
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
