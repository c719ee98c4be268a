"""A causal language model of this process: how likely it finds texts, and what it says.

Log-likelihoods are in bits. Each text is computed by itself, so a number does not depend on which others were
asked for together with it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from assay.base.errors import ConfigError
from assay.base.seeds import derive_key
from assay.scoring.sampler import Completion, Message, SamplerError, Sampling, as_text
from assay.training.model.causal import CausalModel


class TextBits(NamedTuple):
    """A text as the model sees it."""

    bits: Float64[np.ndarray, "token"]
    """[token]: -log2 of its probability given what stands before it."""
    starts: Int64[np.ndarray, "token"]
    """[token]: the byte of the text where it starts."""
    num_bytes: int


class LocalModel:
    """Answers as a `Sampler` and as a judge of likelihood."""

    def __init__(self, model: CausalModel, *, name: str, device: torch.device | None = None) -> None:
        """`name` is what digests call it, e.g. the digest of its weights."""
        self.name = name
        self._device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._network = model.network.to(self._device).eval()
        self._tokenizer = model.tokenizer
        self._window = model.max_tokens
        self._start = model.network.config.bos_token_id
        self._end = model.network.config.eos_token_id

    def text_bits(self, text: str, *, window_tokens: int | None = None) -> TextBits:
        """Bits of every token, each predicted from at least half a window (or all) of the text before it.

        The first token of a text costs what the model says after its start token; a model without one has no
        opinion yet, and the token costs log2 of the vocabulary. `ConfigError` where the tokenizer cannot
        spell the text.
        """
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        if self._tokenizer.decode(encoded.ids, skip_special_tokens=False) != text:
            raise ConfigError(
                "the tokenizer does not spell this text back as it was, so its bits are of another text. Bits "
                "per byte need a lossless tokenizer, e.g. a byte-level BPE."
            )
        window = min(window_tokens or self._window, self._window)
        bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])
        starts = bytes_before[np.array([offset for offset, _ in encoded.offsets], np.int64)]
        return TextBits(self._token_bits(encoded.ids, window), starts, int(bytes_before[-1]))

    def continuation_bits(self, prompt: str, continuation: str) -> tuple[float, int]:
        """Bits of a continuation given a prompt, and its tokens.

        White space at the prompt's end belongs to the continuation, as tokenizers would have it.
        """
        bare = prompt.rstrip()
        continuation = prompt[len(bare) :] + continuation
        before = self._tokenizer.encode(bare, add_special_tokens=False).ids
        whole = self._tokenizer.encode(bare + continuation, add_special_tokens=False).ids
        num_tokens = max(1, len(whole) - len(before))
        if num_tokens >= self._window:
            raise ConfigError(f"a choice of {num_tokens} tokens does not fit the model's {self._window}.")
        kept = whole[-(self._window - 1) :]
        bits = self._token_bits(kept, self._window)
        return float(bits[-num_tokens:].sum()), num_tokens

    def sample(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling
    ) -> list[Completion | SamplerError]:
        """One completion for each conversation; draws follow from `sampling.seed` and the prompt alone."""
        return [self._complete(as_text(prompt), sampling) for prompt in prompts]

    @torch.inference_mode()
    def _token_bits(self, ids: Sequence[int], window: int) -> Float64[np.ndarray, "token"]:
        """Bits of each of `ids`, over overlapping windows."""
        has_start = self._start is not None
        sequence = torch.tensor([self._start, *ids] if has_start else list(ids), dtype=torch.long)
        found = np.zeros(len(sequence), np.float64)
        if not has_start and len(ids):
            found[0] = math.log2(self._network.config.vocab_size)
        for first, tokens, num_new in _windows(sequence, window):
            logits = self._network(input_ids=tokens[None].to(self._device)).logits[0].float()
            log_probabilities = torch.log_softmax(logits[:-1], dim=-1)
            picked = log_probabilities.gather(1, tokens[1:, None].to(self._device))[:, 0]
            new = picked.double().cpu().numpy()[-num_new:]
            found[first : first + num_new] = -new / math.log(2)
        return found[1:] if has_start else found

    @torch.inference_mode()
    def _complete(self, prompt: str, sampling: Sampling) -> Completion | SamplerError:
        ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        room = self._window - sampling.max_tokens
        if room < 1:
            return SamplerError(
                "request", f"max_tokens={sampling.max_tokens} fills the model's {self._window}."
            )
        context = ([self._start] if self._start is not None else []) + ids
        context = context[-room:]
        if not context:
            return SamplerError("request", "an empty prompt, and the model has no start token.")
        generator = torch.Generator().manual_seed(derive_key(sampling.seed or 0, "sample", prompt) % 2**63)
        tokens = list(self._drawn(torch.tensor([context], device=self._device), sampling, generator))
        is_ended = bool(tokens) and tokens[-1] == self._end
        text = self._tokenizer.decode(tokens[:-1] if is_ended else tokens)
        cut = min((place for stop in sampling.stop if (place := text.find(stop)) >= 0), default=None)
        reason = "stop" if is_ended or cut is not None else "length"
        return Completion(text[:cut], reason, len(context), len(tokens))

    def _drawn(
        self, context: Int64[Tensor, "1 token"], sampling: Sampling, generator: torch.Generator
    ) -> Iterator[int]:
        cache = None
        for _ in range(sampling.max_tokens):
            output = self._network(input_ids=context, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            token = _draw(output.logits[0, -1].float().cpu(), sampling, generator)
            yield token
            if token == self._end:
                return
            context = torch.tensor([[token]], device=self._device)


def _windows(sequence: Int64[Tensor, "token"], window: int) -> Iterator[tuple[int, Int64[Tensor, "_"], int]]:
    """(index of the first new token, the window's tokens, new tokens at its end); the very first is given."""
    length, done, stride = len(sequence), 1, max(1, window // 2)
    while done < length:
        stop = min(length, window if done == 1 else done + stride)
        yield done, sequence[max(0, stop - window) : stop], stop - done
        done = stop


def _draw(logits: Float[Tensor, "entry"], sampling: Sampling, generator: torch.Generator) -> int:
    if sampling.temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.double() / sampling.temperature, dim=-1)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        # The most probable tokens whose sum reaches top_p; the first is always among them.
        ordered[ordered.cumsum(0) - ordered >= sampling.top_p] = 0
        probabilities = torch.zeros_like(probabilities).scatter(0, order, ordered)
    return int(torch.multinomial(probabilities, 1, generator=generator))
