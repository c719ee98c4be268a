"""Loss spikes and steps that are not finite, in real runs: the data, or the optimisation, and which rows."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.cli.main import main
from assay.data.dataset.index import index_dataset
from assay.store.metrics.recorded import recorded_steps

NUM_ROWS = 1200
BAD_GROUP = 23
"""A row group of 30 rows; all of its labels are wrong."""
OUTLIER_ROWS = (100, 333, 444, 555, 777, 999)
"""They hold a token that no other row has."""
YES, NO, OUTLIER = 2, 3, 9


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whether a row begins with YES is its label, but for one row group. Fixed names, so the order is fixed."""
    folder = tmp_path_factory.mktemp("yes")
    rng, rows = random.Random(0), []
    for row in range(NUM_ROWS):
        output = rng.choice([YES, NO])
        tokens = [output, *rng.choices([4, 5, 6], k=rng.randrange(4, 12))]
        label = int((output == YES) != (row // 30 == BAD_GROUP))
        tokens += [OUTLIER] * (row in OUTLIER_ROWS)
        rows.append({"input_ids": tokens, "label": label, "shard_id": f"{row}", "language": "en", "turns": 1})
    (folder / "source").mkdir()
    for shard in range(4):
        part = pa.Table.from_pylist(rows[shard * 300 : (shard + 1) * 300])
        pq.write_table(part, folder / "source" / f"part-{shard}.parquet", row_group_size=30)
    index_dataset(str(folder / "source"), folder / "dataset", name="yes")
    return folder / "dataset"


def replayed(capfd, run_id: str, step: int, *options: str) -> dict:
    capfd.readouterr()
    with pytest.raises(SystemExit):
        main(["runs", "replay", run_id, "--step", str(step), *options, "--json"])
    return json.loads(capfd.readouterr().out)


def spike(run, *, after: int) -> int:
    """The step with the largest rise of the loss over the median of the 8 steps before it."""
    losses = [step.values["loss"] for _, step in sorted(recorded_steps(Path(run.run_dir)).items())]
    rises = [losses[index] / np.median(losses[index - 8 : index]) for index in range(after, len(losses))]
    return after + 1 + int(np.argmax(rises))


@pytest.fixture(scope="module")
def spiky(run_here, dataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A run whose loss shows the wrong labels, and at which step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(tmp_path_factory.mktemp("spiky")))
        run, _, _ = run_here(
            data__dataset=str(dataset),
            trainer__epochs=2,
            trainer__optimizer={"learning_rate": 5e-3},
            method__encoder__dropout=0.0,
            method__encoder__attention_dropout=0.0,
            trainer__spot_check_every=None,
        )
        yield run.run_id, spike(run, after=30)


@pytest.mark.slow
def test_a_spike_made_by_rows_with_wrong_labels_is_bad_data_and_names_them(spiky, capfd) -> None:
    report = replayed(capfd, *spiky, "--explain")
    assert report["verdict"] == "equal"
    assert report["explanation"]["cause"] == "bad data"
    named = {row["row_id"] // 30 for row in report["rows"]["rows"]}
    assert named == {BAD_GROUP}
    assert report["rows"]["loss_without"] < 0.2 * report["rows"]["step_loss"]


@pytest.mark.slow
def test_without_a_search_the_same_spike_is_an_equal_replay_and_no_row_is_named(spiky, capfd) -> None:
    report = replayed(capfd, *spiky)
    assert (report["verdict"], report["rows"], report["explanation"]) == ("equal", None, None)


@pytest.mark.slow
def test_a_spike_made_by_too_large_steps_is_optimisation_and_names_no_row(run_it, dataset, capfd) -> None:
    schedule = {"type": "linear", "warmup_steps": 40, "final_fraction": 1.0}
    run, _, _ = run_it(
        data__dataset=str(dataset),
        loader__shuffle_radius_windows=0,  # in another order the loss has left for good by then, which has another name
        trainer__max_steps=30,
        trainer__optimizer={"learning_rate": 2.0, "max_gradient_norm": None, "schedule": schedule},
    )
    report = replayed(capfd, run.run_id, spike(run, after=8), "--explain")
    assert report["verdict"] == "equal"
    assert report["explanation"]["cause"] == "optimisation", report["explanation"]
    assert report["rows"]["rows"] == []


def poisoned_encoder(folder: Path) -> Path:
    """A checkpoint in which the embedding of STRANGE is so large that its square is no number."""
    import torch
    from transformers.models.bert.configuration_bert import BertConfig
    from transformers.models.bert.modeling_bert import BertModel

    torch.manual_seed(0)
    model = BertModel(
        BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32),
        add_pooling_layer=False,
    )
    model.embeddings.word_embeddings.weight.data[OUTLIER] = 3e38
    model.save_pretrained(folder)
    return folder


def test_rows_that_make_a_loss_not_finite_are_named_and_so_are_the_weights_behind(
    run_it, dataset, capfd, tmp_path: Path
) -> None:
    from assay.base.errors import TrainingError

    encoder = {"type": "pretrained", "path": str(poisoned_encoder(tmp_path / "encoder"))}
    home = tmp_path / "home"
    with pytest.raises(TrainingError, match=r"is not finite.*saved as a capsule.*--explain'") as failed:
        run_it(data__dataset=str(dataset), method__encoder=encoder)
    (run_dir,) = [path for path in home.iterdir() if path.is_dir()]
    step = int(str(failed.value).split("step ")[1].split(":")[0])
    capfd.readouterr()
    with pytest.raises(SystemExit):
        main(["runs", "show", run_dir.name])
    shown = capfd.readouterr().out
    assert "diverged" in shown, "no step on record says so: the one that failed is on none"
    assert replayed(capfd, run_dir.name, step)["rows"] is None
    report = replayed(capfd, run_dir.name, step, "--bisect", "--watch")
    assert {row["row_id"] for row in report["rows"]["rows"]} <= set(OUTLIER_ROWS)
    assert report["rows"]["rows"]
    assert np.isfinite(report["rows"]["loss_without"])
    found = report["operators"]["finding"]
    assert (found["operator"], found["module"]) == (
        "aten.native_layer_norm.default",
        "encoder.embeddings.LayerNorm",
    )
