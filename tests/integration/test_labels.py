"""Each kind of label from raw rows to a report: one digest at every number of workers, by its own metrics."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from in_process import AssayAt
from variants import soaked

KINDS = ("binary", "classes", "number")
SCORES = {"classes": ("correct", "share"), "number": ("own", "units of the label")}
WORDS = ("alpha", "beta", "gamma")
SHORT = ("trainer.commit_every=6", "trainer.evaluate_every=12")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `rows.csv`, with a label of each kind."""
    folder = tmp_path_factory.mktemp("labels")
    lines = ["text,binary,classes,number"]
    lines += [
        f"{WORDS[n % 3]} {'again ' * (n % 7)}number {n},{int(n % 3 == 0)},{WORDS[n % 3]},{n % 7 * 10 + 0.5}"
        for n in range(240)
    ]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def assay(folder: Path) -> AssayAt:
    return AssayAt(folder / "home", folder)


@pytest.fixture(scope="module")
def recipes(assay: AssayAt) -> dict[str, str]:
    """Kind -> the recipe that fits its dataset, as it was written."""
    for kind in KINDS:
        named = ("--text", "text", "--label", kind, "--tokenizer", "new:300", "--jobs", 1)
        assay("data", "build", "rows.csv", *named, "--out", kind)
        assay("train", "new", kind, "--epochs", 2, "--out", f"{kind}.yaml")
    return {kind: f"{kind}.yaml" for kind in KINDS}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["classes", *soaked("binary", "number")])
def test_a_kind_of_label_trains_to_one_digest_and_is_reported_by_its_own_metric(
    assay: AssayAt, recipes: dict[str, str], kind: str, tmp_path: Path
) -> None:
    assert f"type: {kind}" in assay("train", recipes[kind], "--check", "--measure", "0", "--verbose").out
    runs: dict[int, dict[str, Any]] = {}
    for workers in (1, 2):
        options = ("--workers", workers, "--run-id", f"{kind}-{workers}")
        runs[workers] = assay.json("train", recipes[kind], *SHORT, *options)
    assert len({run["weights_digest"] for run in runs.values()}) == 1
    evaluation = runs[1]["evaluation"]
    assert runs[2]["evaluation"]["overall"] == evaluation["overall"]
    (same,) = assay.json("decide", "compare", f"{kind}-1", f"{kind}-2", "--out", tmp_path / "c.html")
    assert same["verdict"] == "pass"
    assay("report", f"{kind}-1", "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert {"binary": "ROC", "classes": "Class by class", "number": "Predicted and true"}[kind] in page
    if kind == "classes":
        assert [item["name"] for item in evaluation["overall"]["classes"]] == sorted(WORDS)
        assert "gamma" in page


@pytest.mark.soak  # tests of row_length have a campaign on a number
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["classes", "number"])
def test_a_campaign_decides_on_each_kind_of_label(
    assay: AssayAt, folder: Path, recipes: dict[str, str], kind: str
) -> None:
    score, unit = SCORES[kind]
    campaign = {
        "name": f"c-{kind}",
        "question": "Does a far lower learning rate hurt?",
        "recipe": recipes[kind],
        "candidates": [{"name": "slower", "patch": {"trainer.optimizer.learning_rate": 1e-6}}],
        "seeds": 2,
        "budget_device_hours": 1,
        "benchmarks": [{"type": "predictions", "name": "rows", "score": score}],
        "rule": {"primary": ["rows"], "least_effect": 0.01, "prior_sd": 2.0},
    }
    (folder / f"c-{kind}.yaml").write_text(yaml.safe_dump(campaign))
    assay("decide", "run", f"c-{kind}.yaml")
    (decision,) = assay.json("decide", "show", f"c-{kind}")
    (effect,) = decision["effects"]
    assert effect["unit"] == unit
    assert decision["recommendation"] != "scale"
    memo = next(folder.rglob("memo*.md")).read_text()
    assert "slower" in memo
