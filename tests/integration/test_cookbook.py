"""Recipes of tinker-cookbook, unchanged, on a real server and worker: `make test-cookbook`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from assay.data.dataset.tokens import train_tokenizer
from session_service import Nursery, SessionService

CLIENT = Path(__file__).with_name("cookbook_client.py")
MAX_TOKENS = 8192
NETWORK = {
    "type": "new", "vocab_size": 410, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 64,
    "max_tokens": MAX_TOKENS,
}  # fmt: skip
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def write_base(models: Path) -> None:
    """A base model with random weights, and a tokenizer that transformers loads."""
    folder = models / "chat"
    folder.mkdir(parents=True)
    tokenizer = train_tokenizer(["User: What is 4 + 5?", "Assistant: a model answers"], vocab_size=400)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    recipe = {
        "loader": {"lanes": 8, "global_batch_size": 8, "threads": 1},
        "method": {"type": "sft", "train_on": "spans", "model": NETWORK},
    }
    method = {"max_tokens": MAX_TOKENS, "recipe": recipe}
    (models / "chat.yaml").write_text(yaml.safe_dump({"tokenizer": "chat", "methods": {"supervised": method}}))


@pytest.fixture(scope="module")
def cookbook_service(
    requires, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SessionService, Path]]:
    requires("cookbook", find_spec("tinker_cookbook") is not None, "not installed here (make test-cookbook)")
    folder = tmp_path_factory.mktemp("cookbook")
    write_base(folder / "models")
    service = SessionService(nursery, folder, models=folder / "models")
    yield service, folder / "models"
    service.stop()


@pytest.mark.parametrize(
    "recipe, num_steps, metric",
    [
        ("resumed", 5, "env/all/reward/total"),
        ("conversations", 8, "train_mean_nll"),
        ("preferences", 2, "dpo_loss"),
        ("numerics_check", 2, "optim/kl_sample_train_v1"),
        ("distillation", 3, "teacher_kl"),
    ],
)
def test_a_recipe_runs_unchanged(recipe: str, num_steps: int, metric: str, cookbook_service) -> None:
    service, folder = cookbook_service
    command = [sys.executable, "-W", "ignore", CLIENT, service.url, folder, recipe]
    environment = {**os.environ, "TINKER_API_KEY": "tml-any", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    metrics = [json.loads(line) for line in ended.stdout.splitlines()]
    found = {line["step"]: line[metric] for line in metrics if metric in line}
    assert sorted(found) == [*range(num_steps)], metrics
    if metric == "optim/kl_sample_train_v1":
        assert max(map(abs, found.values())) < 1e-6, "what is trained is what was sampled"
