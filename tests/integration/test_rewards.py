"""What pays rollouts, with real runs: commits of reward models, graders that leak; and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from assay.base.config import LoadedConfig
from assay.base.errors import AssayError
from assay.records.run import Run
from assay.reporting.views.runs.run import RunView, run_view
from assay.statistics.predictions import PREDICTIONS_FILE, evaluation_folder
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.metrics.recorded import recorded_series, recorded_steps
from assay.store.objects import open_store
from assay.training.model_folders import check_unchanged
from assay.training.recipe import recipe_of
from assay.workflows.run import create_run
from in_process import assay as run
from integration.test_soak import seeds
from one_rank import train_here
from preference_rows import preference_dataset, preference_recipe, small_model
from prompt_rows import GRADER, grpo_recipe, prompt_dataset

VOCABULARY = 32


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_dataset(tmp_path_factory.mktemp("prompts"), num_rows=64)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "base"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With runs `judge` (a reward model, finished), `short` (likewise, of fewer tokens) and `begun` (not)."""
    folder = tmp_path_factory.mktemp("home")
    pairs = preference_dataset(tmp_path_factory.mktemp("pairs"), num_rows=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(folder))
        for name, sizes in {
            "judge": {"vocab_size": VOCABULARY},
            "short": {"vocab_size": VOCABULARY, "max_tokens": 14},
        }.items():
            model = small_model(**{"max_tokens": 64, **sizes})
            method = {"type": "reward", "model": model}
            train_here(
                create(
                    preference_recipe(pairs, method, trainer={"epochs": 2, "max_steps": 4, "commit_every": 2}),
                    name,
                )
            )
        create(preference_recipe(pairs, {"type": "reward", "model": small_model(vocab_size=VOCABULARY)}), "begun")
    return folder


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(home))


def create(tree: dict[str, Any], name: str) -> Run:
    return create_run(Home.from_environment(), LoadedConfig(tree, {}), run_id=name)


MISSPELT = "def grade(sample, item):\n    return float(sample['text'] == item['wanted'])"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a field that no item has": (
        {"rewards": [{"grader": {**GRADER, "reference": "{{ item.gold }}"}}]},
        "method.rewards[0]: grader 'names_it' reads item.gold",
    ),
    "the same in what held-out prompts are graded by": (
        {"held_out": [{"grader": {**GRADER, "reference": "{{ item.gold }}"}}]},
        "method.held_out[0]: grader 'names_it' reads item.gold",
    ),
    "a group of one": ({"group_size": 1}, "method.group_size"),
    "more groups than a lane has prompts": (
        {"groups_per_lane": 3},
        "method.groups_per_lane=3: a step has 2 prompts in each lane",
    ),
    "a field that no sample has": (
        {"rewards": [{"grader": {**GRADER, "input": "{{ sample.output_txt }}"}}]},
        "method.rewards[0]: grader 'names_it' reads sample.output_txt, which no sample has",
    ),
    "the same in the source of what held-out prompts are graded by": (
        {"held_out": [{"grader": {"type": "python", "name": "own", "source": MISSPELT}}]},
        "method.held_out[0]: grader 'own' reads sample.text, which no sample has",
    ),
    "answers said ahead by an engine of another process": (
        {
            "staleness": 1,
            "sampler": {
                "type": "remote",
                "url": "http://127.0.0.1:1/v1",
                "model": "m",
                "folder": "/nowhere",
                "logprob_gap": {"bound": 0.1, "on_excess": "refuse"},
            },
        },
        "method.staleness: not supported with a remote sampler",
    ),
    "nothing that pays": ({"rewards": []}, "method.rewards"),
    "a stop that every answer has": ({"sampling": {"max_tokens": 6, "stop": [""]}}, "method.sampling.stop.0"),
    "prompt and answer beyond the reference": (
        {"kl": 0.1, "reference": {"path": "SHORT"}, "sampling": {"max_tokens": 40}},
        "it takes 32 tokens, but the longest prompt with a completion of method.sampling.max_tokens has 4",
    ),
    "prompt and answer beyond the model": ({"sampling": {"max_tokens": 60}}, "method.sampling.max_tokens=60"),
    "a judge behind an endpoint": (
        {"rewards": [{"grader": {"type": "score_model", "model": "g", "input": [{"role": "user", "content": "?"}]}}]},
        "calls an endpoint",
    ),
    "a run that is not there": ({"rewards": [{"run": "nobody"}]}, "method.rewards[0].run=nobody: no such run"),
    "a run that is not finished": ({"rewards": [{"run": "begun"}]}, "it is not finished"),
    "a step without a commit": (
        {"rewards": [{"run": "judge", "step": 3}]},
        "method.rewards[0].step=3: run 'judge' has no commit of it, but of 2, 4",
    ),
    "a reward model of fewer tokens": (
        {"rewards": [{"run": "short"}], "sampling": {"max_tokens": 12}},
        "method.rewards[0].run=short: it takes 14 tokens",
    ),
}


def of_fewer_tokens(base: Path, folder: Path) -> Path:
    """The same model, that says it takes 32 tokens."""
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32}))
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_rewards_that_cannot_be_paid_leave_no_run(
    name: str, prompts: Path, base: Path, home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changes, output = REFUSED[name]
    tree = grpo_recipe(prompts, base, method=changes)
    if changes.get("reference"):
        tree["method"]["reference"] = {"path": str(of_fewer_tokens(base, tmp_path / "short"))}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    capfd.readouterr()
    for words in (["--check", "--measure", "0"], ["--run-id", "refused"]):
        assert run("train", tmp_path / "recipe.yaml", *words) == 2
        error = capfd.readouterr().err
        assert output in error and error.count("error: ") == 1 and "Traceback" not in error, error
    assert not (home / "refused").exists()


def test_a_run_that_pays_no_rewards_is_refused(prompts: Path, base: Path) -> None:
    policy = create(grpo_recipe(prompts, base, trainer={"max_steps": 1, "commit_every": 1}), "policy")
    train_here(policy)
    with pytest.raises(AssayError, match="it is of method 'grpo', which computes no rewards"):
        create(grpo_recipe(prompts, base, method={"rewards": [{"run": "policy"}]}), "refused")


def test_a_commit_of_a_reward_run_pays_and_its_weights_are_on_record(prompts: Path, base: Path, home: Path) -> None:
    rewards = [{"run": "judge", "step": 2, "weight": 2.0}, {"grader": GRADER}]
    method = {"rewards": rewards, "held_out": [{"run": "judge"}]}
    charged = create(
        grpo_recipe(prompts, base, trainer={"max_steps": 2, "commit_every": 2, "evaluate_every": 2}, method=method),
        "shaped_reward",
    )
    commits = CommitLog(open_store(str(home / "judge"))).commits()
    assert charged.folders is not None
    assert charged.folders["method.rewards[0]"] == commits[0].weights_digest
    assert charged.folders["method.held_out[0]"] == commits[1].weights_digest
    train_here(charged)
    step = recorded_steps(Path(charged.run_dir))[2].values
    assert step["reward"] == pytest.approx(2 * step["reward_judge"] + step["reward_names_it"]) and step["reward_judge"]
    assert step["failed_grades"] == 0.0
    assert step["validation_reward_error"] > 0.0
    held_out = recorded_series(Path(charged.run_dir), lambda name: name == "validation_reward")["validation_reward"]
    assert sorted(held_out) == [0, 2], "before the first step, too: what a leak falls from"


def test_another_commit_in_the_place_of_the_one_that_paid_is_refused(prompts: Path, base: Path) -> None:
    rewards = create(grpo_recipe(prompts, base, method={"rewards": [{"run": "judge"}]}), "replaced")
    record = rewards.model_copy(update={"folders": {**(rewards.folders or {}), "method.rewards[0]": "0" * 64}})
    check_unchanged(rewards, recipe_of(rewards))
    with pytest.raises(AssayError, match=r"method.rewards\[0\]=judge: its weights .* 000000000000"):
        check_unchanged(record, recipe_of(record))


def test_a_grader_that_fails_too_often_stops_the_run_and_is_named(prompts: Path, base: Path) -> None:
    source = "def grade(sample, item):\n    return 1 / (item['number'] % 8)"
    rewards = [{"grader": {"type": "python", "name": "own", "source": source}}]
    often = grpo_recipe(prompts, base, method={"rewards": rewards, "max_reward_failures": 0.01})
    with pytest.raises(AssayError, match=r"of the rollouts got no reward .*python_grader_runtime_error"):
        train_here(create(often, "often"))
    some = grpo_recipe(prompts, base, method={"rewards": rewards, "max_reward_failures": 1.0}, trainer={"max_steps": 2})
    train_here(retained := create(some, "some"))
    steps = recorded_steps(Path(retained.run_dir))
    assert any(0 < step.values["failed_grades_python_grader_runtime_error"] < 1 for step in steps.values())


DIGITS = Path(__file__).parents[2] / "recipes" / "rl"
IN_ORDER = """
def grade(sample, item):
    digits = sample["output_text"].split()
    return float(len(digits) == 5 and digits == sorted(digits))
"""
"""Pays for any five digits that rise, whichever were asked for."""


@pytest.fixture(scope="module")
def digits(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts, and a model that sorts some of them: by the commands that the recipe's own files name."""
    folder = tmp_path_factory.mktemp("digits")
    namespace: dict[str, Any] = {"__name__": "digits"}
    exec(compile((DIGITS / "digits.py").read_text(), "digits.py", "exec"), namespace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(home))
        for which in ("shown", "asked"):
            (folder / f"{which}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in namespace["rows"](which)))
        build = ["data", "build", folder / "shown.jsonl", "--format", "chat", "--tokenizer", "new:300"]
        assert run(*build, "--out", folder / "digits-shown") == 0
        warm_up = ["train", DIGITS / "warm_up.yaml", f"data.dataset={folder / 'digits-shown'}"]
        assert run(*warm_up, "--run-id", "digits-warm-up") == 0
        assert run("runs", "export", "digits-warm-up", "--out", folder / "model") == 0
        build = [
            "data",
            "build",
            folder / "asked.jsonl",
            "--format",
            "prompts",
            "--tokenizer",
            folder / "model",
        ]
        assert run(*build, "--out", folder / "digits-asked") == 0
    return folder


def learn(folder: Path, name: str, *changes: str) -> RunView:
    """A hundred steps of the recipe as it is, but for `changes`."""
    words = [
        f"data.dataset={folder / 'digits-asked'}",
        f"method.model.path={folder / 'model'}",
        "trainer.max_steps=100",
    ]
    often = ["trainer.evaluate_every=20", "trainer.commit_every=20"]
    assert run("train", DIGITS / "grpo.yaml", *words, *often, *changes, "--run-id", name) == 0
    with Home.from_environment().open_ledger() as ledger:
        return run_view(ledger, name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(short=0, soak=3))
def test_an_honest_run_learns_and_raises_no_flag_beside_any_commit(digits: Path, seed: int) -> None:
    """Though its likeliest answers become worse for a while, as what is drawn becomes better."""
    view = learn(digits, f"honest-{seed}", f"seed={seed}")
    assert {commit.step: [flag.rule for flag in commit.flags] for commit in view.commits} == {
        step: [] for step in range(20, 101, 20)
    }
    assert view.warnings == () and view.prompts is not None
    assert view.prompts.total() == sum(commit.rows_trained for commit in view.commits) > 0
    steps = recorded_steps(Path(Home.from_environment().run(f"honest-{seed}").run_dir))
    rewards = [created.values["reward"] for created in steps.values()]
    assert sum(rewards[:20]) / 20 < 0.4 and sum(rewards[-20:]) > 1.5 * sum(rewards[:20])


@pytest.mark.slow
def test_a_grader_that_leaks_is_flagged_within_a_hundred_steps(digits: Path) -> None:
    leaky = json.dumps([{"grader": {"type": "python", "name": "in_order", "source": IN_ORDER}}])
    exact = yaml.safe_load((DIGITS / "grpo.yaml").read_text())["method"]["rewards"]
    view = learn(digits, "leaky", f"method.rewards={leaky}", f"method.held_out={json.dumps(exact)}")
    assert "reward hacking" in [warning.rule for warning in view.warnings]


def test_held_out_answers_say_how_long_and_how_far_from_the_reference_they_are(prompts: Path, base: Path) -> None:
    tree = grpo_recipe(
        prompts,
        base,
        method={"kl": 0.01, "updates_per_rollout": 2},
        trainer={"max_steps": 3, "commit_every": 3, "optimizer": {"learning_rate": 1e-2}},
    )
    train_here(held := create(tree, "held"))
    rows = {}
    for step in (0, 3):
        folder = evaluation_folder(Path(held.run_dir), step=step, split="validation")
        if (folder / PREDICTIONS_FILE).exists():
            rows[step] = pq.read_table(folder / PREDICTIONS_FILE)
    assert all(1 <= length <= 6 for length in rows[3]["length"].to_pylist())
    assert all(far > 0.0 for far in rows[3]["kl"].to_pylist()), "it has learned, and the reference has not"
