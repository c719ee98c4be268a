"""A causal language model that returns logprobs and entropies instead of logits.

    input_ids [row, token]  --decoder-->  states  --head, for scored tokens only (see `head`)-->  TokenScores

Rows are padded on the right, so causal attention needs no mask; or several rows share a sequence, separated by position
ids that restart at 0; or they form a line (see `data.loader.line`), whose tensors have shapes that no row changes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from assay.base.errors import ConfigError
from assay.base.shapes import Bool, Float, Int, Shaped
from assay.models.causal import adapted, build_causal
from assay.models.causal_config import NewCausalConfig, PretrainedCausalConfig
from assay.models.described import builds_without_numbers
from assay.models.determinism import distinct_writes
from assay.models.head import TokenScores, head_loss, head_scores
from assay.models.line_attention import Borders, line_keywords
from assay.models.lora import head_weight

TOLERANCE = 1e-3
"""Largest difference, in nats, between two computations of the same logprobs; a different head exceeds it."""


class Line(NamedTuple):
    """How a sequence is divided into rows, and where the head computes scores."""

    rows: Borders
    targets: Int[Tensor, "place"]
    indices: Int[Tensor, "place"] | None
    """Places of the line, all distinct; None for the whole line."""


def line_of(tensors: Mapping[str, Shaped[Tensor, "..."]]) -> Line | None:
    """Return the line that the arrays of `scored_arrays` describe; None if rows have a sequence each."""
    if "targets" not in tensors:
        return None
    return Line(Borders(tensors["borders"], tensors["longest_row"]), tensors["targets"], tensors.get("indices"))


class CausalNetwork(nn.Module):
    """A Hugging Face model whose forward pass stores no tensor of tokens x vocabulary."""

    def __init__(self, config: NewCausalConfig | PretrainedCausalConfig, base: Any = None) -> None:
        """`base`: a frozen one, whose weights are shared."""
        super().__init__()
        self.network = build_causal(config) if base is None else adapted(base, config)
        _check_plain_head(self)

    def forward(
        self,
        input_ids: Int[Tensor, "row token"],
        position_ids: Int[Tensor, "row token"] | None = None,
        scored: Bool[Tensor, "row target"] | None = None,
        *,
        targets: Int[Tensor, "row target"] | None = None,
        temperature: float = 1.0,
        line: Line | None = None,
        with_loss: bool = False,
    ) -> TokenScores | tuple[Float[Tensor, ""], TokenScores]:
        """Return the scores of each token but the first, [row, token - 1]: of those marked by `scored`, or of all.

        The head computes nothing for other tokens. With a `line`, `scored` [1, place] marks those of its targets that
        are scored, and the scores are [1, place]. `with_loss`: return the sum of their -logprobs, and scores without
        gradients; a GPU computes that in three products instead of four.

        `targets` of padded rows are scored in place of the tokens that follow in the input.

        `position_ids` are needed for packed rows: they restart at each row. Logits are divided by `temperature`.
        """
        rows = None if line is None else line.rows
        states = hidden_states(self.network.base_model, input_ids, position_ids, rows)
        states = (states if line else states[:, :-1]).flatten(0, 1)
        head = self.network.get_output_embeddings()
        weight, bias = head_weight(head), getattr(head, "bias", None)
        if line is not None and line.indices is not None:
            states = states_at(states, line.indices)
        if temperature != 1.0:
            states, bias = states / temperature, None if bias is None else bias / temperature
        if line is not None:
            assert scored is not None
            if with_loss:
                loss, found = head_loss(states, weight, bias, line.targets, scored.flatten())
                return loss, TokenScores(*(score * scored for score in found))
            found = head_scores(states, weight, bias, line.targets)
            return TokenScores(*(score * scored for score in found))
        shape = input_ids[:, 1:].shape
        targets = (input_ids[:, 1:] if targets is None else targets).flatten()
        scored_indices = None if scored is None else scored.flatten().nonzero()[:, 0]
        if scored_indices is None or len(scored_indices) == len(targets):
            found = head_scores(states, weight, bias, targets)
            return TokenScores(*(score.view(shape) for score in found))
        found = head_scores(states.index_select(0, scored_indices), weight, bias, targets[scored_indices])
        expanded = (score.new_zeros(len(targets)).index_copy(0, scored_indices, score) for score in found)
        return TokenScores(*(score.view(shape) for score in expanded))


def sequence_logprobs(
    model: nn.Module, input_ids: Int[Tensor, "row token"], scored: Bool[Tensor, "row target"]
) -> Float[Tensor, "row"]:
    """Return the sum of the logprobs of each row's scored tokens."""
    scores: TokenScores = model(input_ids, None, scored)
    return scores.logprobs.sum(dim=1)


def hidden_states(
    decoder: Any,
    input_ids: Int[Tensor, "row token"],
    position_ids: Int[Tensor, "row token"] | None = None,
    rows: Borders | None = None,
) -> Float[Tensor, "row token width"]:
    """Return the last layer's states of a model without head (see `build_decoder`); `rows` of a line know nothing of
    each other."""
    keywords = {} if rows is None else line_keywords(decoder, rows)
    states: Tensor = decoder(
        input_ids=input_ids, position_ids=position_ids, use_cache=False, **keywords
    ).last_hidden_state
    return states


def states_at(states: Float[Tensor, "token width"], indices: Int[Tensor, "place"]) -> Float[Tensor, "place width"]:
    """Return the states at distinct indices."""
    selected: Tensor = _StatesAt.apply(states, indices)  # type: ignore[no-untyped-call]
    return selected


class _StatesAt(torch.autograd.Function):
    """`index_select`, whose own backward pass sorts the indices in the deterministic mode."""

    @staticmethod
    def forward(
        ctx: Any, states: Float[Tensor, "token width"], indices: Int[Tensor, "place"]
    ) -> Float[Tensor, "place width"]:
        ctx.save_for_backward(indices)
        ctx.num_tokens = len(states)
        return states.index_select(0, indices)

    @staticmethod
    def backward(ctx: Any, gradient: Float[Tensor, "place width"]) -> tuple[Float[Tensor, "token width"], None]:
        [indices] = ctx.saved_tensors
        whole = gradient.new_zeros(ctx.num_tokens, gradient.shape[1])
        with distinct_writes():
            whole.index_copy_(0, indices, gradient)
        return whole, None


def row_sums(values: Float[Tensor, "place"], row_of: Int[Tensor, "place"], num_rows: int) -> Float[Tensor, "row"]:
    """Return the sums of the values of each row, without a write at an index: each sum has one order."""
    return _by_row(values, row_of, num_rows).sum(dim=1)


def row_totals(values: Float[Tensor, "place"], row_of: Int[Tensor, "place"], num_rows: int) -> Float[Tensor, "place"]:
    """Return at each place the sum of its row."""
    sums = row_sums(values, row_of, num_rows)
    return _by_row(sums[:, None], row_of, num_rows).sum(dim=0)  # its other terms are zeros


def _by_row(values: Float[Tensor, "..."], row_of: Int[Tensor, "place"], num_rows: int) -> Float[Tensor, "row place"]:
    """Return the values of each row at its own places, and zeros elsewhere."""
    rows = torch.arange(num_rows, device=values.device)[:, None]
    return torch.where(row_of == rows, values, 0.0)


@torch.no_grad()
def _check_plain_head(model: CausalNetwork) -> None:
    """Raise if the head is not a plain linear map (e.g. soft-capped or scaled logits)."""
    if builds_without_numbers():
        return
    was_training = model.training
    model.eval()
    tokens = torch.arange(4)[None] % model.network.config.vocab_size
    expected = model.network(input_ids=tokens, use_cache=False).logits[:, :-1].float().log_softmax(-1)
    expected = expected.gather(2, tokens[:, 1:, None])[:, :, 0]
    difference = float((model(tokens).logprobs - expected).abs().max())
    model.train(was_training)
    if not difference < TOLERANCE:
        raise ConfigError(
            f"{type(model.network).__name__}: its head is not a plain matrix (this architecture's logits "
            f"are scaled or capped; they differ by {difference:.2g} nats), which is not supported. Use "
            "an architecture with a plain head: llama, mistral, qwen2, qwen3, olmo2, gpt2."
        )
