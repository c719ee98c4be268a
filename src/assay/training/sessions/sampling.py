"""Completions and logprobs of prompts with weights of a session: a base model's own, or adapters that were saved."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from assay.base.errors import DataError
from assay.base.shapes import Float32, Int64
from assay.distributed.rank_device import Precision, autocast
from assay.inference.local.generator import Generator
from assay.inference.local.memory import SLOTS
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import Prompt, Rollout
from assay.models.causal import end_ids, longest_sequence
from assay.training.checkpoint.parts import model_state, restore_model
from assay.training.sessions.method import SessionMethod
from assay.training.sessions.stored_state import stored, stored_model
from assay.training.trainer.method_config import CausalMethodConfig
from assay.training.trainer.step import initial_model


class TopLogprobs(NamedTuple):
    """The most probable tokens at each position of a prompt, most probable first."""

    token_ids: Int64[np.ndarray, "token entry"]
    logprobs: Float32[np.ndarray, "token entry"]


NO_LOGPROB = -99_999.0
"""At the first token of a prompt, as clients expect it."""


class SamplingModel:
    """A model of which only the trained weights are ever replaced."""

    def __init__(
        self,
        config: CausalMethodConfig,
        tokenizer: Tokenizer,
        *,
        ends: Collection[int],
        seed: int,
        device: torch.device,
        precision: Precision,
        base: Any = None,
    ) -> None:
        """`ends`: tokens that end a text, besides those that the model names. `base`: see `SessionTrainer`."""
        self._method = SessionMethod(config, base)
        self._model = initial_model(self._method, seed=seed, device=device).eval()
        network: Any = self._model.network
        self._network, self._device = network, device
        self._autocast = autocast(precision if device.type == "cuda" else "float32", device)
        self._generator = Generator(network, ends=(*ends, *end_ids(network)), tokenizer=tokenizer, slots=SLOTS)
        self._initial = stored(model_state(self._model))
        self.window_tokens = longest_sequence(network.config)
        """Longest sequence, completion included."""
        self.num_entries = int(network.get_output_embeddings().weight.shape[0])
        """Size of the vocabulary."""

    def load(self, weights: bytes | None) -> None:
        """Use stored weights; None: the base model's own."""
        data = self._initial if weights is None else weights
        restore_model(self._model, stored_model(data, model_state(self._model)))

    def check_prompt(self, tokens: Sequence[int], *, max_tokens: int) -> None:
        """Raise `DataError` for a prompt that the model cannot continue by `max_tokens` tokens."""
        if not tokens:
            raise DataError("prompt: it has no tokens.")
        if wrong := [token for token in tokens if token >= self.num_entries]:
            raise DataError(f"prompt: {wrong[0]} is no token of this model. Ids are 0 to {self.num_entries - 1:,}.")
        if len(tokens) + max_tokens > self.window_tokens:
            raise DataError(
                f"prompt: it has {len(tokens):,} tokens, and with max_tokens={max_tokens:,} it exceeds the model's "
                f"{self.window_tokens:,}."
            )

    def sample(
        self, prompts: Sequence[Prompt], params: SamplingParams, *, ends: Collection[int] | None
    ) -> list[Rollout]:
        """Return a completion of each prompt. `ends`: tokens that end it in place of the model's own."""
        with self._autocast:
            return self._generator.generate(prompts, params, ends=ends)

    @torch.inference_mode()
    def prompt_logprobs(
        self, tokens: Sequence[int], num_top: int
    ) -> tuple[Float32[np.ndarray, "token"], TopLogprobs | None]:
        """Return the logprob of each token given those before it (NaN for the first), and the most probable ones."""
        sequence = torch.tensor([list(tokens)], device=self._device)
        with self._autocast:
            logits = self._network(input_ids=sequence).logits[0, :-1].float()
        predicted = torch.log_softmax(logits, dim=-1)
        own = predicted.gather(1, sequence[0, 1:, None])[:, 0].cpu().numpy()
        logprobs = np.concatenate([[np.nan], own]).astype(np.float32)
        if not num_top:
            return logprobs, None
        values, ids = predicted.topk(min(num_top, self.num_entries), dim=1)
        return logprobs, TopLogprobs(
            np.pad(ids.cpu().numpy(), ((1, 0), (0, 0))),
            np.pad(values.cpu().numpy(), ((1, 0), (0, 0)), constant_values=NO_LOGPROB),
        )
