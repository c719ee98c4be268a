"""What a pipeline's file says, and what it is refused for; no rows, no training."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.store.home import Home
from assay.workflows.pipeline.config import StageCommit, is_pipeline, read_pipeline
from assay.workflows.pipeline.folder import declare_pipeline, load_pipeline
from assay.workflows.pipeline.stages import stage_plan, stage_recipe

STAGES = [
    {"name": "sft", "patch": {"method": {"type": "sft"}}},
    {"name": "reward", "from": "sft", "patch": {"method": {"type": "reward"}}},
    {
        "name": "grpo",
        "from": "sft@best",
        "recipe": "grpo.yaml",
        "patch": {"method.reference.path": "stage:sft", "method.rewards": [{"run": "stage:reward"}]},
    },
]
GRPO = {
    "name": "rollouts",
    "method": {"type": "grpo", "model": {"type": "pretrained", "path": "none", "lora": {"rank": 2}}},
}


def written(folder: Path, stages: list[dict[str, Any]], **keys: Any) -> Path:
    (folder / "grpo.yaml").write_text(yaml.safe_dump(GRPO))
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump({"name": "tiny", "stages": stages, **keys}, sort_keys=False))
    return path


def with_stage(index: int, **keys: Any) -> list[dict[str, Any]]:
    return [{**stage, **keys} if index == location else stage for location, stage in enumerate(STAGES)]


def test_a_recipe_gets_the_folders_and_runs_of_earlier_stages(tmp_path: Path) -> None:
    path = written(tmp_path, STAGES)
    assert is_pipeline(path) and not is_pipeline(tmp_path / "grpo.yaml")
    declared = load_pipeline(path)
    found = stage_recipe(
        declared,
        "grpo",
        7,
        folder_of=lambda commit: Path("/models") / f"{commit.stage}{'-best' * commit.is_best}",
        step_of=lambda commit: 40 if commit.stage == "reward" else None,
    ).values
    assert found["method"] == {
        "type": "grpo",
        "model": {"lora": {"rank": 2}, "type": "pretrained", "path": "/models/sft-best"},
        "reference": {"path": "/models/sft"},
        "rewards": [{"run": "tiny-reward-s7", "step": 40}],
    }
    assert (found["name"], found["seed"], found["loader"]["seed"]) == ("rollouts", 7, 7)
    assert declared.recipes["grpo"].values["method"]["reference"] == {"path": "stage:sft"}, "unchanged"


def test_what_is_declared_is_declared_once(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")

    def declared(stages: list[dict[str, Any]], **keys: Any) -> tuple[str, ...]:
        pipeline = declare_pipeline(home, load_pipeline(written(tmp_path, stages, **keys)), SystemClock())
        arms = stage_plan(pipeline)
        return tuple(arms.run_id(arm, seed) for arm in arms.names for seed in arms.seeds)

    runs = ("tiny-sft-s0", "tiny-reward-s0", "tiny-grpo-s0")
    assert declared(STAGES) == declared(STAGES, workers=2, budget_device_hours=3) == runs
    changed = with_stage(2, patch={**STAGES[2]["patch"], "method.kl": 0.1})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"declared with another stages\.2\.patch\.method\.kl, recipe of stage grpo"):
        declared(changed)
    with pytest.raises(ConfigError, match=r"another seeds\."):
        declared(STAGES, seeds=2)
    GRPO["name"] = "otherwise"
    try:
        with pytest.raises(ConfigError, match=r"another recipe of stage grpo\.name\."):
            declared(STAGES)
    finally:
        GRPO["name"] = "rollouts"
    assert declared(STAGES) == runs
    (home.campaigns / "tiny" / "pipeline.json").rename(home.campaigns / "tiny" / "campaign.json")
    with pytest.raises(ConfigError, match="is a campaign in"):
        declared(STAGES)
    assert not home.has_pipeline("tiny")


@pytest.mark.parametrize(
    ("stages", "keys", "message"),
    [
        (
            with_stage(1, **{"from": "grpo"}),
            {},
            r"line 8: stage 'reward' names 'grpo' \(from\), which is not an earlier stage",
        ),
        (with_stage(0, **{"from": "sft"}), {}, r"stage 'sft' names 'sft' \(from\).*Earlier stages: none"),
        (
            with_stage(2, patch={"method.reference.path": "stage:base"}),
            {},
            r"line 16: stage 'grpo' names 'base' \(method\.reference\.path\)",
        ),
        (with_stage(1, name="sft"), {}, "two stages have the name 'sft'"),
        (with_stage(1, patch={}), {}, "needs a recipe or a patch"),
        (with_stage(1, patch={"seed": 3}), {}, "patches seed"),
        (with_stage(1, form="sft"), {}, r"no such key\. Perhaps you meant 'stages\.1\.from'"),
        (with_stage(1, **{"from": "sft@40"}), {}, r"stages\.1\.from"),
        (with_stage(2, recipe="lost.yaml"), {}, r"lost\.yaml: no such file"),
        ([], {}, "stages"),
    ],
)
def test_what_a_file_cannot_say(
    stages: list[dict[str, Any]], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_pipeline(written(tmp_path, stages, **keys))


def test_stages_are_compared_along_the_line_to_the_last_over_seeds_and_within_a_budget(tmp_path: Path) -> None:
    compare = {
        "benchmarks": [{"type": "suite", "name": "exact"}],
        "rule": {"primary": ["exact"], "least_effect": 0.1},
    }
    whole = {"compare": compare, "seeds": 2, "budget_device_hours": 1}
    assert read_pipeline(written(tmp_path, STAGES, **whole)).compared() == ("sft", "grpo")
    for key, hint in (("seeds", "seeds: 2 or more"), ("budget_device_hours", "Give budget_device_hours")):
        with pytest.raises(ConfigError, match=hint):
            read_pipeline(written(tmp_path, STAGES, **{name: item for name, item in whole.items() if name != key}))
    with pytest.raises(ConfigError, match="names 'base'"):
        read_pipeline(written(tmp_path, STAGES, **{**whole, "compare": {**compare, "stages": ["base", "sft"]}}))
    with pytest.raises(ConfigError, match="one stage to compare"):
        read_pipeline(written(tmp_path, STAGES[:1], **whole))
    with pytest.raises(ConfigError, match="stage 'grpo' names 'dpoo'"):
        read_pipeline(written(tmp_path, with_stage(2, **{"from": "dpoo"}), **whole))
    with pytest.raises(ConfigError, match="named by the rule or a gate"):
        other = {**compare, "rule": {"primary": ["else"], "least_effect": 0.1}}
        read_pipeline(written(tmp_path, STAGES, **{**whole, "compare": other}))


def test_of_a_stage_there_is_the_last_commit_or_the_best() -> None:
    assert StageCommit.named("stage:sft@best") == StageCommit("sft", is_best=True)
    with pytest.raises(ConfigError, match="sft@best"):
        StageCommit.named("sft@40")
