"""A project that commands made: a dataset, runs in each state, a comparison and, on request, a campaign.

    PROJECT/  dataset, recipe.yaml, suite.yaml, campaign.yaml
              runs/finished     two workers, one of them killed in step 6; evaluated and audited
                   unfinished   the same recipe, told to stop in step 6, so its last commit is of step 7
                   candidate    another learning rate; compared with `finished`
                   campaigns/   `small`: one candidate, two seeds

It is made once a session and then renamed, so that a copy counts as the project that has moved.
"""

import fcntl
import json
import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from assay.cli.main import main
from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.workflows.evaluation import background

WORDS = ("alpha", "beta", "gamma", "delta", "return", "yield", "import", "class", "lambda", "pass")
NUM_ROWS = 300


class SampleProjects:
    """Makes the project on the first request, and copies of it."""

    def __init__(self, folder: Path) -> None:
        """`folder` is shared by the processes of a test session."""
        self._folder = folder

    def copy_to(self, folder: Path, *, campaign: bool = False) -> Path:
        """Copy the project to a folder that does not exist yet; returns its home."""
        shutil.copytree(self._built(campaign), folder, dirs_exist_ok=True)
        _write_files(folder)
        return folder / "runs"

    def _built(self, campaign: bool) -> Path:
        whole = self._folder / ("with-campaign" if campaign else "without-campaign")
        self._folder.mkdir(exist_ok=True)
        with (self._folder / f"{whole.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.is_dir():
                making = self._folder / f"making-{whole.name}"
                shutil.rmtree(making, ignore_errors=True)  # of a test before, which failed to make it
                if campaign:
                    self.copy_to(making)
                    _run(making / "runs", f"decide run {making}/campaign.yaml")
                else:
                    _make(making)
                making.rename(whole)
        return whole


def _make(project: Path) -> None:
    _build_dataset(project)
    _write_files(project)
    home, recipe = project / "runs", project / "recipe.yaml"
    _run(home, f"train {recipe} --run-id finished --workers 2 --faults {project}/kill.yaml")
    _run(home, "runs audit finished")
    _run(home, f"train {recipe} --run-id unfinished --faults {project}/terminate.yaml")
    _run(home, f"train {recipe} --run-id candidate trainer.optimizer.learning_rate=0.02")
    _run(home, "decide compare finished candidate --allowed-loss 0.9")


def _build_dataset(project: Path) -> None:
    rng = random.Random(0)
    rows = []
    for number in range(NUM_ROWS):
        words = rng.choices(WORDS, k=rng.randrange(3, 30))
        rows.append(
            {
                "text": " ".join(words), "label": int(words.count("return") > words.count("yield")),
                "language": rng.choice(["en", "de", None]), "key": f"talk-{number // 5}", "turns": number % 7,
            }
        )  # fmt: skip
    project.mkdir()
    (project / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = BuildConfig(
        tokenizer="new:300", metadata_fields=("language", "turns"), key_field="key", rows_per_shard=150,
        rows_per_group=30,
    )  # fmt: skip
    build_dataset([project / "rows.jsonl"], project / "dataset", config)


def _write_files(project: Path) -> None:
    recipe = {
        "name": "tiny",
        "data": {"dataset": str(project / "dataset"), "split": {"type": "hash", "validation_fraction": 0.2}},
        "loader": {"lanes": 4, "global_batch_size": 16, "window_rows": 16, "threads": 1},
        "method": {
            "type": "classify",
            "encoder": {
                "type": "new", "vocab_size": 300, "hidden_size": 8, "num_layers": 1, "num_heads": 2,
                "intermediate_size": 16, "max_tokens": 160,
            },
            "categorical_columns": ["language"], "numeric_columns": ["turns"], "category_buckets": 16,
        },
        "retention": {"keep_best": 0, "keep_last": 1},
        "trainer": {"commit_every": 4, "max_steps": 10, "optimizer": {"learning_rate": 0.001}},
    }  # fmt: skip
    campaign = {
        "name": "small", "question": "Does a far higher learning rate help?", "recipe": "campaign-recipe.yaml",
        "candidates": [{"name": "faster", "patch": {"trainer.optimizer.learning_rate": 0.02}}],
        "seeds": 2, "budget_device_hours": 1,
        "benchmarks": [
            {"type": "predictions", "name": "likelihood", "score": "log_likelihood"},
            {"type": "suite", "name": "loss", "suite": "suite.yaml"},
        ],
        "rule": {"primary": ["likelihood"], "least_effect": 0.02},
    }  # fmt: skip
    loss = {"type": "classification", "name": "loss", "score": "log_loss"}
    files = {
        "recipe": {**recipe, "evaluation": {"suite": str(project / "suite.yaml")}},
        "campaign-recipe": recipe,
        "campaign": campaign,
        "suite": {"name": "s", "benchmarks": [loss]},
        "kill": {"faults": [{"type": "kill", "rank": 1, "step": 6}]},
        "terminate": {"faults": [{"type": "terminate", "step": 6}]},
    }
    for name, tree in files.items():
        (project / f"{name}.yaml").write_text(yaml.safe_dump(tree))


class _Evaluator:
    """Stands for the process of a run's evaluation worker: works in this one, as soon as it is waited for."""

    def __init__(self, command: Sequence[str], **options: object) -> None:
        self._command = " ".join(command[command.index("eval") : -1])  # without --follow: all has been committed
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.returncode = 0

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = _exit_code(self._command)
        return self.returncode


def _run(home: Path, command: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(home))
        patch.delenv("ASSAY_LEDGER", raising=False)
        patch.setattr(background, "subprocess", SimpleNamespace(Popen=_Evaluator, DEVNULL=subprocess.DEVNULL))
        code = _exit_code(command)
    assert code in (0, 75), (command, code)


def _exit_code(command: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    return int(ended.value.code or 0)


def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of a test session share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "sample-projects"
