"""Planted shapes are found, each alone, and a well-shaped recipe gets no advice."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from assay.base.config import LoadedConfig
from assay.reporting.views.shapes import ShapesView
from assay.throughput.cluster import Cluster
from assay.workflows.throughput.shapes import MIN_SAVED, describe_shapes, setting_of
from language_rows import indexed, sft_recipe

ROWS, TOKENS, LANES = 32, 512, 8
Describe = Callable[..., ShapesView]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of one length, with token ids below 50,257."""
    ids = np.random.default_rng(0).integers(0, 50_257, (768, TOKENS), dtype=np.int32)
    ids[:, 0] = 50_256
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(ids.ravel()), TOKENS).cast(pa.list_(pa.int32()))
    table = pa.table({"input_ids": tokens, "shard_id": [f"key-{row}" for row in range(768)]})
    return indexed(table, tmp_path_factory.mktemp("rows"))


def recipe(dataset: Path, *, rows: int = ROWS, loader: dict[str, Any] | None = None, **model: Any) -> LoadedConfig:
    sizes = {
        "type": "new", "vocab_size": 50_304, "hidden_size": 1024, "num_layers": 1, "num_heads": 16,
        "intermediate_size": 4096, "max_tokens": TOKENS,
    }  # fmt: skip
    layout = {"lanes": LANES, "global_batch_size": LANES * rows, "window_rows": 64, "layout": {"type": "padded"}}
    tree = sft_recipe(dataset, method={"model": sizes | model})
    tree["loader"] = layout | {"threads": 1} | (loader or {})
    return LoadedConfig(tree, {})


@pytest.fixture(scope="module")
def describe(dataset: Path) -> Describe:
    """Describe a recipe, equal ones once."""

    def described(device: str = "h100", workers: int = LANES, **keys: Any) -> ShapesView:
        setting = setting_of(device, workers, Cluster(8), "ddp", is_measured=False)
        return describe_shapes(recipe(dataset, **keys), setting)

    return cache(described)


def test_a_well_shaped_recipe_gets_no_advice(describe: Describe) -> None:
    assert describe().advice == ()


@pytest.mark.parametrize(
    ("planted", "patch"),
    [
        pytest.param({"vocab_size": 50_257}, {"method.model.vocab_size": 50_304}, id="a vocabulary of 50257"),
        pytest.param({"hidden_size": 960, "num_heads": 16}, {"method.model.num_heads": 15}, id="heads of 60"),
        pytest.param(
            {"rows": ROWS + 1}, {"loader.global_batch_size": LANES * ROWS},
            marks=pytest.mark.slow, id="a row above the last that fits",
        ),
        pytest.param(
            {"hidden_size": 1000, "num_heads": 4}, {"method.model.hidden_size": 1024},
            marks=pytest.mark.slow, id="a width of 1000",
        ),
    ],
)  # fmt: skip
def test_a_planted_shape_is_found_alone(planted: dict[str, Any], patch: dict[str, Any], describe: Describe) -> None:
    found = describe(**planted)
    assert [advice.patch for advice in found.advice] == [patch]
    assert [candidate["patch"] for candidate in found.candidates] == [patch]
    assert found.advice[0].waste_saved > MIN_SAVED


def test_what_heads_of_60_lose_is_attributed_to_them(describe: Describe) -> None:
    heads_of_64, heads_of_60 = (
        next(one for one in found.operators if one.kind == "attention")
        for found in (describe(), describe(hidden_size=960, num_heads=16))
    )
    assert heads_of_64.lost["alignment"] == 0 < heads_of_60.lost["alignment"]
