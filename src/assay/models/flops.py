"""Model FLOPs: the arithmetic that a training step needs, and the share of a card's rate that this is (MFU).

    forward     2 x numbers in the layers' matrices x tokens  +  2 x numbers in the head x scored tokens
                + layers x 4 x query width x tokens^2, half of it under a causal mask, for each sequence
    training    3 x forward; 2 x for frozen matrices below adapters; 1 x for a frozen reference model
    MFU         model FLOPs / (seconds x the card's dense bfloat16 rate)

After Chowdhery et al. 2022, arXiv:2204.02311, appendix B, with two differences that make the share smaller: attention
counts only the half that a causal mask leaves, and the head only the tokens that it scores. Activations that are
computed twice and padding do not count. Imports no torch.
"""

from typing import NamedTuple

import numpy as np

from assay.base.shapes import Int
from assay.models.causal_config import NewCausalConfig, PretrainedCausalConfig
from assay.models.config import EncoderShape


class ModelFlops(NamedTuple):
    """What a model's FLOPs follow from."""

    matrices: int
    """Numbers in the matrices of all layers."""
    head: int = 0
    """Numbers in the matrix that gives logits."""
    adapters: int = 0
    """Numbers in adapters; if there are any, the other matrices are frozen."""
    attention: float = 0.0
    """FLOPs of attention in a forward pass, for each squared token of a sequence."""

    def forward(self, lengths: Int[np.ndarray, "sequence"], num_scored: int) -> float:
        """Return the FLOPs of a forward pass over sequences of these lengths."""
        return self._products(lengths, num_scored) + self._rest(lengths)

    def training(self, lengths: Int[np.ndarray, "sequence"], num_scored: int, *, num_references: int = 0) -> float:
        """Return the FLOPs of a forward and a backward pass, and of forward passes of frozen reference models."""
        factor = 2 if self.adapters else 3
        references = num_references * (self._products(lengths, num_scored) + self._attention(lengths))
        return factor * self._products(lengths, num_scored) + 3 * self._rest(lengths) + references

    def _products(self, lengths: Int[np.ndarray, "sequence"], num_scored: int) -> float:
        return 2.0 * (self.matrices * int(lengths.sum()) + self.head * num_scored)

    def _rest(self, lengths: Int[np.ndarray, "sequence"]) -> float:
        return 2.0 * self.adapters * int(lengths.sum()) + self._attention(lengths)

    def _attention(self, lengths: Int[np.ndarray, "sequence"]) -> float:
        return self.attention * float(np.square(lengths.astype(np.float64)).sum())


def causal_flops(model: NewCausalConfig | PretrainedCausalConfig, *, has_head: bool = True) -> ModelFlops | None:
    """Return the FLOPs of a language model; None if its `config.json` uses unknown names."""
    decoder, shape = model.decoder(), model.shape()
    if decoder is None or shape is None:
        return None
    width, layers = decoder.hidden_size, decoder.num_layers
    attention = 2 * width * (decoder.query_size + decoder.kv_size)
    feed_forward = (3 if decoder.is_gated else 2) * width * decoder.intermediate_size
    return ModelFlops(
        matrices=layers * (attention + feed_forward),
        head=width * shape.vocab_size if has_head else 0,
        adapters=(model.num_parameters() or 0) if model.lora is not None else 0,
        attention=2.0 * layers * decoder.query_size,
    )


def encoder_flops(shape: EncoderShape) -> ModelFlops:
    """Return the FLOPs of an encoder, whose tokens attend to all of their sequence."""
    width, layers = shape.hidden_size, shape.num_layers
    return ModelFlops(
        matrices=layers * (4 * width * width + 2 * width * shape.intermediate_size), attention=4.0 * layers * width
    )
