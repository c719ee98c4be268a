"""The losses that a request can name, per token; a request's loss is their sum.

    r_t   exp(log pi(t) - q_t): the policy's probability of a token over that of its sampler
    s     exp of the mean of log r_t over the tokens in `sequence_ratio_mask` (default: all of the datum)
    A_t   advantage; w_t weight; c(x) = min(max(x, clip_low_threshold), clip_high_threshold)

    cross_entropy         - w_t log pi(t)
    importance_sampling   - r_t A_t
    ppo                   - min(r_t A_t, c(r_t) A_t)
    gspo                  - min(s A_t, c(s) A_t)
    cispo                 - stop_gradient(c(r_t)) A_t log pi(t)
    dro                   - A_t log pi(t) + beta / 2 (log r_t)^2

Nothing is divided by a number of tokens or datums: the client chooses weights and advantages.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from assay.base.errors import DataError
from assay.base.shapes import Float

OfTokens = Float[Tensor, "row target"]
"""A number for each target token of padded rows; inputs are 0 on padding."""
Inputs = Mapping[str, OfTokens]
"""The request's inputs by name."""


class NamedLoss(NamedTuple):
    """A loss with what it reads."""

    of_tokens: Callable[[OfTokens, Inputs, Mapping[str, float]], OfTokens]
    """(logprobs, inputs, settings) -> the loss of each token."""
    required: tuple[str, ...]
    """Inputs that each datum has, with a number for each target token."""
    optional: tuple[str, ...] = ()
    """Inputs that are 1 if a datum has none."""
    settings: Mapping[str, float] = {}
    """Settings with their defaults."""


def _cross_entropy(logprobs: OfTokens, inputs: Inputs, settings: Mapping[str, float]) -> OfTokens:  # noqa: ARG001
    return -logprobs * inputs["weights"]


def _importance_sampling(logprobs: OfTokens, inputs: Inputs, settings: Mapping[str, float]) -> OfTokens:  # noqa: ARG001
    return -(logprobs - inputs["logprobs"]).exp() * inputs["advantages"]


def _ppo(logprobs: OfTokens, inputs: Inputs, settings: Mapping[str, float]) -> OfTokens:
    return _clipped((logprobs - inputs["logprobs"]).exp(), inputs["advantages"], settings)


def _gspo(logprobs: OfTokens, inputs: Inputs, settings: Mapping[str, float]) -> OfTokens:
    mask = inputs["sequence_ratio_mask"]
    log_ratios = ((logprobs - inputs["logprobs"]) * mask).sum(dim=1, keepdim=True)
    ratios = (log_ratios / mask.sum(dim=1, keepdim=True).clamp(min=1)).exp()
    return _clipped(ratios.expand_as(logprobs), inputs["advantages"], settings)


def _clipped(ratios: OfTokens, advantages: OfTokens, settings: Mapping[str, float]) -> OfTokens:
    clipped = ratios.clamp(settings["clip_low_threshold"], settings["clip_high_threshold"])
    return -(ratios * advantages).minimum(clipped * advantages)


def _cispo(logprobs: OfTokens, inputs: Inputs, settings: Mapping[str, float]) -> OfTokens:
    ratios = (logprobs.detach() - inputs["logprobs"]).exp()
    weights = ratios.clamp(settings["clip_low_threshold"], settings["clip_high_threshold"])
    return -weights * inputs["advantages"] * logprobs


def _dro(logprobs: OfTokens, inputs: Inputs, settings: Mapping[str, float]) -> OfTokens:
    return 0.5 * settings["beta"] * (logprobs - inputs["logprobs"]).square() - inputs["advantages"] * logprobs


_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_POLICY = ("logprobs", "advantages")
LOSSES: Mapping[str, NamedLoss] = {
    "cross_entropy": NamedLoss(_cross_entropy, (), optional=("weights",)),
    "importance_sampling": NamedLoss(_importance_sampling, _POLICY),
    "ppo": NamedLoss(_ppo, _POLICY, settings=_CLIP),
    "gspo": NamedLoss(_gspo, _POLICY, optional=("sequence_ratio_mask",), settings=_CLIP),
    "cispo": NamedLoss(_cispo, _POLICY, settings=_CLIP),
    "dro": NamedLoss(_dro, _POLICY, settings={"beta": 0.05}),
}


def named_loss(name: str) -> NamedLoss:
    """Return a loss by name. Raises `DataError`."""
    if name not in LOSSES:
        raise DataError(f"loss_fn: '{name}' is not served. Use one of: {', '.join(LOSSES)}.")
    return LOSSES[name]


def loss_settings(name: str, requested: Mapping[str, float | str]) -> dict[str, float]:
    """Return the settings of a loss, the requested ones over its defaults. Raises `DataError`."""
    known = named_loss(name).settings
    for key, value in requested.items():
        if key not in known:
            raise DataError(f"loss_fn_config: '{key}' is not a setting of {name}. {_choice_of(known)}")
        if isinstance(value, str) or not value >= 0:
            raise DataError(f"loss_fn_config: {key} is {value!r}; it must be a number of 0 or more.")
    return {**known, **{key: float(value) for key, value in requested.items()}}


def _choice_of(known: Mapping[str, float]) -> str:
    return f"It has {', '.join(known)}." if known else "It has none."
