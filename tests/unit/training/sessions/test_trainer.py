"""A session's model: requests in lanes, the gradient that they add up, updates, and the same bits on any ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from assay.base.errors import DataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.loader import Loader
from assay.distributed.ranks import Ranks
from assay.models.causal_config import CausalShape
from assay.records.cursor import Cursor
from assay.training.recipe import Recipe
from assay.training.sessions.batch import Datum, check_datums
from assay.training.sessions.losses import LOSSES
from assay.training.sessions.trainer import AdamSettings, RequestLoss, SessionTrainer
from forked_ranks import on_ranks
from language_rows import VOCABULARY, indexed, sft_recipe
from one_rank import train_one_rank
from session_datums import ADAM, random_datums, session_trainer

CROSS_ENTROPY = RequestLoss("cross_entropy")
ROW_TOKENS, NUM_STEPS = 17, 4
NOT_FINITE = np.array([1, np.nan, 1], np.float32)


def loop(trainer: SessionTrainer) -> tuple[list[Any], str]:
    """Four updates from one, two and three requests, of fewer datums than lanes and of more."""
    outputs = []
    for step in range(4):
        for request in range(step % 3 + 1):
            datums = random_datums([3, 9, 6][request], "ppo", seed=10 * step + request)
            output = trainer.forward_backward(datums, RequestLoss("ppo"), seq_id=10 * step + request)
            outputs.append((output.loss, [row.tolist() for row in output.logprobs]))
        outputs.append(trainer.update(ADAM))
    return outputs, trainer.digest()


@pytest.mark.parametrize("budget", [None, 16])
def test_outputs_weights_and_moments_have_the_same_bits_on_any_ranks(budget: int | None, tmp_path: Path) -> None:
    def run(ranks: Ranks) -> tuple[list[Any], str]:
        return loop(session_trainer(ranks, max_micro_batch_tokens=budget))

    found = [result for size in (1, 2, 3) for result in on_ranks(size, run, tmp_path / str(size))]
    assert all(result == found[0] for result in found)


def recipe_with_equal_rows(folder: Path) -> dict[str, Any]:
    """Of rows of one length: the trained tokens of a step are a power of two, so dividing by their number is exact."""
    tokens = np.random.default_rng(5).integers(1, VOCABULARY, (80, ROW_TOKENS)).tolist()
    columns = {"input_ids": pa.array(tokens, pa.list_(pa.int32())), "shard_id": list(map(str, range(80)))}
    optimizer = {"learning_rate": 0.01, "schedule": {"type": "constant"}, "max_gradient_norm": 0.5}
    training = {"max_steps": NUM_STEPS, "optimizer": optimizer, "precision": "float32"}
    return sft_recipe(indexed(pa.table(columns), folder), trainer=training)


def tokens_of_steps(tree: dict[str, Any]) -> list[list[np.ndarray]]:
    """The tokens of the training rows, [step][row], lane by lane."""
    recipe = Recipe.model_validate(tree)
    view = split_view(Dataset.open(Path(recipe.data.dataset)), recipe.data.split, "train")
    shares = Loader(view, recipe.loader, ["input_ids"]).shares(Cursor(), range(recipe.loader.lanes), NUM_STEPS)
    return [
        [row for lane in share.lanes for batch in lane.micro_batches for row in batch.tokens.values] for share in shares
    ]


def test_sft_by_requests_has_the_bits_of_a_training_run(tmp_path: Path) -> None:
    tree = recipe_with_equal_rows(tmp_path / "rows")
    run, steps = train_one_rank(tree, tmp_path / "run"), tokens_of_steps(tree)

    def session(ranks: Ranks) -> tuple[list[float], dict[str, torch.Tensor]]:
        trainer, losses = session_trainer(ranks), []
        for step, rows in enumerate(steps, 1):
            weights = np.full(ROW_TOKENS - 1, 1 / (len(rows) * (ROW_TOKENS - 1)), np.float32)
            datums = [Datum(row[:-1], row[1:], {"weights": weights}) for row in rows]
            losses.append(trainer.forward_backward(datums, CROSS_ENTROPY, seq_id=step).loss)
            trainer.update(AdamSettings(0.01, 0.9, 0.999, 1e-8, 0.01, 0.5))
        return losses, dict(trainer.model.state_dict())

    [(losses, weights)] = on_ranks(1, session, tmp_path / "session")
    assert losses == [step["loss"] for step in run.steps]
    assert weights.keys() == run.weights.keys()
    assert all(torch.equal(weights[name], run.weights[name]) for name in weights)


def test_logprobs_are_those_of_the_weights_before_the_update_also_without_a_gradient(tmp_path: Path) -> None:
    def outputs(ranks: Ranks) -> list[Any]:
        trainer, datums = session_trainer(ranks), random_datums(5, "cross_entropy")
        first = trainer.forward(datums, CROSS_ENTROPY, seq_id=1)
        assert not trainer.has_gradient
        passes = trainer.forward_backward(datums, CROSS_ENTROPY, seq_id=1)
        trainer.update(ADAM)
        return [first, passes, trainer.forward(datums, CROSS_ENTROPY, seq_id=2)]

    [(before, passes, after)] = on_ranks(1, outputs, tmp_path)
    assert before.loss == passes.loss != after.loss
    assert [row.tolist() for row in before.logprobs] == [row.tolist() for row in passes.logprobs]


def test_a_restored_model_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def split(ranks: Ranks) -> tuple[list[str], list[str]]:
        def steps(trainer: SessionTrainer, seeds: range) -> str:
            for seed in seeds:
                trainer.forward_backward(random_datums(5, "dro", seed=seed), RequestLoss("dro"), seq_id=seed)
                trainer.update(ADAM)
            return trainer.digest()

        whole, first, second, only_weights = (session_trainer(ranks) for _ in range(4))
        initial = first.digest()
        first.restore(first.stored())  # before the first update, too
        steps(first, range(3))
        second.restore(first.stored())
        only_weights.restore(first.stored(), with_moments=False)
        assert second.stored(with_moments=False) == only_weights.stored(with_moments=False)
        found = [steps(trainer, range(3, 6)) for trainer in (second, only_weights)]
        return [initial, steps(whole, range(6))], found

    [([initial, whole], [restored, without_moments])] = on_ranks(1, split, tmp_path)
    assert restored == whole
    assert len({initial, whole, without_moments}) == 3


def wrong(**changes: Any) -> Datum:
    datum = Datum(np.array([1, 2, 3]), np.array([2, 3, 4]), {"weights": np.ones(3, np.float32)})
    return datum._replace(**changes)


@pytest.mark.parametrize(
    ("datums", "message"),
    [
        ([], "the request has no datum"),
        ([wrong(), wrong(tokens=np.array([], np.int64))], r"data\[1\]: model_input has no tokens"),
        ([wrong(tokens=np.arange(4))], "target_tokens has 3 numbers, model_input has 4"),
        ([wrong(targets=np.array([2, 3, VOCABULARY]))], "target_tokens holds 40. Token ids of this model are 0 to 39"),
        ([wrong(tokens=np.array([1, -1, 3]))], "model_input holds -1"),
        ([wrong(tokens=np.ones(64, np.int64))], "model_input has 64 tokens, and the model takes 64"),
        ([wrong(inputs={"weights": np.ones(2, np.float32)})], "weights has 2 numbers"),
        (
            [wrong(inputs={"weights": np.array([1, np.nan, 1], np.float32)})],
            "weights holds a number that is not finite",
        ),
        ([wrong(inputs={"advantages": np.ones(3, np.float32)})], "'advantages' is not an input of the loss"),
    ],
)
def test_a_datum_that_does_not_fit_is_refused_by_its_place(datums: list[Datum], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_datums(datums, LOSSES["cross_entropy"], CausalShape(VOCABULARY, 64))


def test_an_update_without_a_gradient_or_with_one_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    def refused(ranks: Ranks) -> list[str]:
        trainer, messages = session_trainer(ranks), []
        before = trainer.digest()
        for datums in ([], [wrong(inputs={"weights": np.full(3, 3e38, np.float32)})]):
            if datums:
                trainer.forward_backward(datums, CROSS_ENTROPY, seq_id=1)
            with pytest.raises(DataError) as raised:
                trainer.update(ADAM)
            messages.append(str(raised.value))
        assert trainer.digest() == before
        trainer.forward_backward(random_datums(3, "cross_entropy"), CROSS_ENTROPY, seq_id=2)
        trainer.update(ADAM)
        assert trainer.digest() != before, "the session goes on"
        return messages

    [(without, not_finite)] = on_ranks(1, refused, tmp_path)
    assert "no forward_backward since the last" in without
    assert "so no update was made" in not_finite
