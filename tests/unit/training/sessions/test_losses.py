"""Each named loss and its gradient beside plain PyTorch on transformers' own model, datum by datum."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.base.errors import DataError
from assay.distributed.ranks import Ranks
from assay.training.sessions.batch import Datum
from assay.training.sessions.losses import LOSSES, loss_settings
from assay.training.sessions.trainer import RequestLoss
from forked_ranks import on_ranks
from session_datums import random_datums, session_trainer

SETTINGS: dict[str, dict[str, float]] = {
    "ppo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.15},
    "dro": {"beta": 0.3},
}
NUM_DATUMS = 7


def plain_loss(name: str, logprobs: Tensor, inputs: dict[str, Tensor], settings: dict[str, float]) -> Tensor:
    """The loss of one datum, as its description has it."""
    if name == "cross_entropy":
        return -(logprobs * inputs["weights"]).sum()
    advantages, sampler = inputs["advantages"], inputs["logprobs"]
    ratio = torch.exp(logprobs - sampler)
    if name == "importance_sampling":
        return -(ratio * advantages).sum()
    if name == "dro":
        return -(logprobs * advantages - 0.5 * settings.get("beta", 0.05) * (logprobs - sampler) ** 2).sum()
    low, high = settings.get("clip_low_threshold", 0.8), settings.get("clip_high_threshold", 1.2)
    if name == "cispo":
        return -(torch.clamp(ratio, low, high).detach() * logprobs * advantages).sum()
    if name == "gspo":
        mask = inputs["sequence_ratio_mask"].bool()
        ratio = torch.exp((logprobs - sampler)[mask].mean()).repeat(len(logprobs))
    return -torch.min(ratio * advantages, torch.clamp(ratio, low, high) * advantages).sum()


def plain_request(network: Any, datums: list[Datum], name: str) -> tuple[float, list[Tensor], list[Tensor]]:
    """Loss, logprobs and gradients of a request."""
    losses, of_datums = [], []
    for datum in datums:
        logits = network(input_ids=torch.from_numpy(datum.tokens)[None]).logits[0]
        logprobs = logits.log_softmax(-1).gather(1, torch.from_numpy(datum.targets)[:, None])[:, 0]
        inputs = {key: torch.from_numpy(values) for key, values in datum.inputs.items()}
        losses.append(plain_loss(name, logprobs, inputs, SETTINGS.get(name, {})))
        of_datums.append(logprobs.detach())
    total = torch.stack(losses).sum()
    return float(total.detach()), of_datums, list(torch.autograd.grad(total, list(network.parameters())))


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient_are_those_of_plain_pytorch(name: str, tmp_path: Path) -> None:
    def compared(ranks: Ranks) -> dict[str, float]:
        trainer = session_trainer(ranks)
        datums = random_datums(NUM_DATUMS, name)
        loss, logprobs, gradients = plain_request(trainer.model.network, datums, name)
        output = trainer.forward_backward(datums, RequestLoss(name, SETTINGS.get(name, {})), seq_id=1)
        pairs = zip(trainer._gradient, gradients, strict=True)
        rows = zip(output.logprobs, logprobs, strict=True)
        return {
            "loss": abs(output.loss - loss) / max(1.0, abs(loss)),
            "logprobs": max(float((torch.from_numpy(found) - expected).abs().max()) for found, expected in rows),
            "gradients": max(float((found - expected).abs().max()) for found, expected in pairs),
            "scale": -max(float(gradient.abs().max()) for gradient in gradients),
        }

    [differences] = on_ranks(1, compared, tmp_path)
    assert differences.pop("scale") < -0.1, "the gradient is not small itself"
    assert max(differences.values()) < 2e-6, differences


def with_mask(datum: Datum, mask: np.ndarray | None) -> Datum:
    inputs = {name: values for name, values in datum.inputs.items() if name != "sequence_ratio_mask"}
    return datum._replace(inputs=inputs if mask is None else {**inputs, "sequence_ratio_mask": mask})


def test_settings_and_inputs_change_the_loss(tmp_path: Path) -> None:
    """Each is read: otherwise the agreement above would hold of a loss that ignores it on both sides."""

    def losses(ranks: Ranks) -> list[float]:
        trainer, datums = session_trainer(ranks), random_datums(NUM_DATUMS, "gspo")
        everywhere = [np.ones(len(datum.tokens), np.float32) for datum in datums]
        whole = [with_mask(datum, mask) for datum, mask in zip(datums, everywhere, strict=True)]
        bare = [with_mask(datum, None) for datum in datums]
        narrow = {"clip_low_threshold": 0.99, "clip_high_threshold": 1.01}
        requests = [(datums, {}), (whole, {}), (bare, {}), (datums, narrow)]
        return [trainer.forward(data, RequestLoss("gspo", settings), seq_id=1).loss for data, settings in requests]

    [(masked, whole, bare, narrow)] = on_ranks(1, losses, tmp_path)
    assert whole == bare, "without a mask, all tokens of a datum count"
    assert len({masked, whole, narrow}) == 3


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("stable_reinforce", {}, "'stable_reinforce' is not served"),
        ("ppo", {"beta": 0.1}, "'beta' is not a setting of ppo. It has clip_low_threshold"),
        ("cross_entropy", {"beta": 0.1}, "It has none"),
        ("dro", {"beta": "much"}, "beta is 'much'"),
        ("dro", {"beta": float("nan")}, "beta is nan"),
    ],
)
def test_an_unknown_loss_or_setting_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        loss_settings(name, settings)
