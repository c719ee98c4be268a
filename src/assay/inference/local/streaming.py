"""Streams completions while they are sampled, scores given tokens, and detokenizes single ones.

    generator --a token of each choice--> TokenStreamer --text that cannot change any more--> CompletionChunk

Text is emitted once it is final: a character with missing bytes waits for them, and so does a possible beginning of a
stop string. The chunks of a choice together are the text that would be returned at its end.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from assay.base.shapes import Float, Float32, Int64
from assay.inference.local.stop_tokens import UNFINISHED, CompletionText
from assay.inference.protocol import CompletionChunk, Reason, TokenLogprob
from assay.inference.rollout import Rollout
from assay.models.token_scores import hidden_states

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""Name of a byte in tokenizers with byte fallback."""


class TokenTexts:
    """Detokenizes single tokens of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        # After another token: some tokenizers omit the space before a text's first word.
        self._before = tokenizer.encode("a", add_special_tokens=False).ids
        self._start = tokenizer.decode(self._before)
        self.of = lru_cache(maxsize=1 << 16)(self._of)

    def _of(self, token: int) -> tuple[str, bytes | None]:
        """Return a token's text, and its bytes if the tokenizer tells.

        The text is unique among tokens that are parts of characters: these are named by their bytes.
        """
        name = self._tokenizer.id_to_token(token)
        if name is None:
            return "", None  # a vocabulary may be padded beyond its tokenizer's
        if token in self._special:
            return name, name.encode()
        text = self._tokenizer.decode([*self._before, token]).removeprefix(self._start)
        if UNFINISHED not in text:
            return text, text.encode()
        found = _bytes_of(name)
        if found is None:
            return name, None
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found), found

    def logprob(self, token: int, logprob: float | None, top: Sequence[tuple[int, float]] = ()) -> TokenLogprob:
        """Return a token with its logprob and the most probable tokens with theirs."""
        text, text_bytes = self.of(token)
        return TokenLogprob(
            text=text,
            text_bytes=None if text_bytes is None else tuple(text_bytes),
            logprob=logprob,
            top_logprobs=tuple(self.logprob(*other) for other in top),
        )

    def logprobs(
        self, logprobs: Float32[Tensor, "token entry"], tokens: Int64[Tensor, "token"], top_logprobs: int
    ) -> list[TokenLogprob]:
        """Return the tokens with their logprobs, each in its own distribution."""
        own = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        if not top_logprobs:
            return [self.logprob(token, logprob) for token, logprob in zip(tokens.tolist(), own, strict=True)]
        top = logprobs.topk(min(top_logprobs, logprobs.shape[-1]), dim=-1)
        of_tokens = zip(tokens.tolist(), own, top.indices.tolist(), top.values.tolist(), strict=True)
        return [
            self.logprob(token, logprob, [*zip(indices, values, strict=True)])
            for token, logprob, indices, values in of_tokens
        ]


@dataclass
class _Choice:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Tokens since the last chunk."""
    num_emitted: int = 0
    text: str = ""
    """Emitted text."""


class TokenStreamer:
    """Emits chunks of choices while they are sampled; a `DrawObserver`."""

    def __init__(
        self,
        emit: Callable[[CompletionChunk], None],
        tokenizer: Tokenizer,
        *,
        ends: Collection[int],
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
        texts: TokenTexts | None = None,
        is_streamed: bool = False,
    ) -> None:
        """`top_logprobs`: number of alternatives for each token; None: no logprobs. If not `is_streamed`, a
        choice is one chunk."""
        self._emit = emit
        self._ends = frozenset(ends)
        self._texts = texts or TokenTexts(tokenizer)
        self._completion = CompletionText(tokenizer, stop, ends)
        self._top_logprobs = top_logprobs
        self._is_streamed = is_streamed
        self._choices: dict[int, _Choice] = defaultdict(_Choice)

    def drew(
        self, prompts: Int64[np.ndarray, "row"], logits: Float[Tensor, "row entry"], tokens: Int64[Tensor, "row"]
    ) -> None:
        rows = np.flatnonzero(prompts >= 0).tolist()
        sampled = tokens.cpu().tolist()
        if self._top_logprobs is not None:
            of_rows = torch.log_softmax(logits[rows].float(), dim=-1)
            logprobs = self._texts.logprobs(of_rows, tokens[rows], self._top_logprobs)
        for position, row in enumerate(rows):
            choice = self._choices[int(prompts[row])]
            choice.tokens.append(sampled[row])
            if self._top_logprobs is not None:
                choice.logprobs.append(logprobs[position])
            if self._is_streamed:
                self._emit_stable(int(prompts[row]), choice)

    def ended(self, prompt: int, rollout: Rollout) -> None:
        choice = self._choices.pop(prompt)
        text = self._completion.of(rollout.tokens.tolist())
        # Emitted text stays, even if the tokenizer decodes the whole differently from its prefix.
        rest = text[len(choice.text) :]
        self._emit(self._piece(prompt, choice, rest, rollout.reason))

    def _emit_stable(self, index: int, choice: _Choice) -> None:
        text = self._completion.stable_prefix(self._completion.of(choice.tokens))
        if text.startswith(choice.text) and len(text) > len(choice.text):
            self._emit(self._piece(index, choice, text[len(choice.text) :], None))
            choice.text = text

    def _piece(self, index: int, choice: _Choice, text: str, reason: Reason | None) -> CompletionChunk:
        num_new, logprobs = len(choice.tokens) - choice.num_emitted, choice.logprobs
        choice.num_emitted, choice.logprobs = len(choice.tokens), []
        if reason == "stop" and logprobs and choice.tokens[-1] in self._ends:
            logprobs[-1] = logprobs[-1].model_copy(update={"is_end": True})
        return CompletionChunk(choice=index, text=text, tokens=tuple(logprobs), num_tokens=num_new, reason=reason)


@torch.inference_mode()
def scored(network: Any, tokens: Sequence[int], texts: TokenTexts, *, top_logprobs: int = 0) -> list[TokenLogprob]:
    """Return each token's logprob given those before it, from one pass over them alone; None for the first."""
    sequence = torch.tensor(list(tokens), dtype=torch.long, device=network.device)
    first = texts.logprob(int(tokens[0]), None)
    if len(tokens) == 1:
        return [first]
    logits = network(input_ids=sequence[None]).logits[0, :-1].float()
    return [first, *texts.logprobs(torch.log_softmax(logits, dim=-1), sequence[1:], top_logprobs)]


@torch.inference_mode()
def mean_state(network: Any, tokens: Sequence[int]) -> list[float]:
    """Return the mean of the last layer's states over the tokens: an embedding of the text."""
    sequence = torch.tensor([list(tokens)], dtype=torch.long, device=network.device)
    states = hidden_states(network.base_model, sequence)[0]
    vector: list[float] = states.double().mean(dim=0).tolist()
    return vector


def _bytes_of(name: str) -> bytes | None:
    """Return the bytes that a token's name in the vocabulary stands for."""
    if (match := _BYTE.fullmatch(name)) is not None:
        return bytes([int(match[1], 16)])
    if any(character not in _BYTE_OF for character in name):
        return None
    return bytes(_BYTE_OF[character] for character in name)


def _byte_alphabet() -> dict[str, int]:
    """Return the characters that name bytes in byte-level vocabularies: printable ones themselves, the others
    from 256 on (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): other for n, other in enumerate(others)}


_BYTE_OF = _byte_alphabet()
