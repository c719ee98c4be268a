"""What a ladder file may say. Each mistake is one error that names the key and the fix."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.base.config import LoadedConfig, set_dotted
from assay.base.errors import ConfigError
from assay.store.home import Home
from assay.workflows.ladder.config import read_ladder
from assay.workflows.ladder.folder import KnownGoodConfig, OpenLadder

RATE, WIDTH = {"trainer.optimizer.learning_rate": 0.01}, {"method.encoder.hidden_size": 32}
LADDER: dict[str, Any] = {
    "name": "tiny",
    "question": "Which changes help?",
    "base": "recipe.yaml",
    "changes": [{"name": "faster", "patch": RATE}, {"name": "wider", "patch": WIDTH}],
    "seeds": 3,
    "budget_device_hours": 1,
    "benchmarks": [{"type": "predictions", "name": "loss", "score": "log_likelihood"}],
    "rule": {"primary": ["loss"], "least_effect": 0.02},
    "gates": {"warnings": True},
}


def write(folder: Path, **changed: Any) -> Path:
    """Write the ladder with some keys replaced, `__` for a dot; None removes a key."""
    tree = deepcopy(LADDER)
    for key, value in changed.items():
        set_dotted(tree, key.replace("__", "."), value, where="in the test")
    path = folder / "ladder.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in tree.items() if value is not None}, sort_keys=False))
    return path


STEPS = {"name": "short", "patch": {"trainer.max_steps": 5}}
WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"changes": [{"name": "both", "patch": {**RATE, **WIDTH}}]},
        "changes.0.patch (ladder.yaml:6): change 'both' changes trainer.optimizer.learning_rate and "
        "method.encoder.hidden_size at once. Make it several changes, one key each",
    ),
    ({"gates": None}, "gates: required, and not given"),
    ({"gates": {}}, "no gate is set: give one of loss_band, step_time, code_length, warnings"),
    ({"gates": {"warnings": False}}, "no gate is set"),
    ({"gates__wornings": True}, "no such key. Perhaps you meant 'gates.warnings'"),
    ({"recipe": "recipe.yaml"}, "no such key. Perhaps you meant 'base'"),
    ({"candidates": []}, "no such key. Perhaps you meant 'changes'"),
    ({"gates__code_length": {}}, "gates.code_length.margin: required, and not given"),
    ({"changes": []}, "changes"),
    ({"changes": [{"name": "a", "command": "python train.py {seed}"}]}, "change 'a' has no patch"),
    ({"changes": [{"name": "base", "patch": RATE}]}, "'base' is a name of the ladder's own"),
    ({"changes": [{"name": "a", "patch": RATE}, {"name": "a", "patch": WIDTH}]}, "two changes have the name 'a'"),
    (
        {"changes": [{"name": "a", "patch": RATE}, {"name": "b", "patch": {"trainer.optimizer": {}}}]},
        "changes 'a' and 'b' both set trainer.optimizer.learning_rate, so their gains do not add up",
    ),
    ({"rungs": [STEPS, STEPS]}, "two rungs have the name 'short'"),
    (
        {"rungs": [{**STEPS, "tries_changes": True}], "changes": [{"name": "a", "patch": {"trainer.max_steps": 9}}]},
        "change 'a' sets trainer.max_steps, and so does rung 'short', which tries changes",
    ),
    ({"gates__loss_band": {}}, "a law of the loss needs 6 rungs to be tested on, and there are 0"),
    ({"rungs": [{**STEPS, "name": "faster"}]}, "two campaigns would be called 'tiny-faster'"),
    ({"name": "t" * 40}, "names have at most 40 characters"),
    ({"rule__sealed": {"benchmark": "loss"}}, "a sealed benchmark opens once, and a ladder has many campaigns"),
    ({"candidates_from": ["nowhere.json"]}, "nowhere.json: no such file"),
    ({"candidates_from": ["ladder.yaml"]}, "ladder.yaml: has no list 'candidates', and candidates_from names it"),
]


@pytest.mark.parametrize(("changed", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_a_wrong_ladder_is_refused_with_the_key_and_the_fix(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_ladder(write(tmp_path, **changed))
    assert message in str(refused.value).replace(f"{tmp_path}/", "")


def test_candidates_of_a_json_file_come_after_the_changes(tmp_path: Path) -> None:
    candidates = [{"name": "padded", "because": "no tile is cut", "patch": {"method.encoder.vocab_size": 320}}]
    tree = {"device": "h100", "candidates": candidates}
    (tmp_path / "shapes.json").write_text(json.dumps(tree))
    found = read_ladder(write(tmp_path, candidates_from=["shapes.json"]))
    assert [change.name for change in found.changes] == ["faster", "wider", "padded"]
    assert found.changes[-1].because == "no tile is cut"


def test_two_changes_at_once_are_refused_in_a_json_file_too(tmp_path: Path) -> None:
    (tmp_path / "shapes.json").write_text(json.dumps({"candidates": [{"name": "both", "patch": {"a": 1, "b": 2}}]}))
    with pytest.raises(ConfigError, match="change 'both' changes a and b at once"):
        read_ladder(write(tmp_path, candidates_from=["shapes.json"]))


def test_every_campaign_has_seeds_of_its_own_and_one_share_of_the_error(tmp_path: Path) -> None:
    config, base = read_ladder(write(tmp_path)), KnownGoodConfig(tmp_path / "recipe.yaml", LoadedConfig({}, {}), None)
    ladder = OpenLadder(Home.at(tmp_path / "home"), config, tmp_path, base)
    campaigns = [
        ladder.campaign(change.name, on=base, error_rate=0.025, budget_device_hours=1).config
        for change in config.changes
    ]
    seeds = [campaign.seed_numbers for campaign in campaigns]
    assert seeds == [(3, 4, 5), (6, 7, 8)], "the rungs have the first three"
    assert [campaign.look_plan().error_rate for campaign in campaigns] == pytest.approx([0.025, 0.025])
    assert [(campaign.name, campaign.recipe) for campaign in campaigns] == [
        ("tiny-faster", "recipe.yaml"), ("tiny-wider", "recipe.yaml"),
    ]  # fmt: skip
    (gate,) = campaigns[0].gates
    assert (gate.then, [condition.margin for condition in gate.conditions]) == ("rollback", [0.02])
