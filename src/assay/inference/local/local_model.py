"""A causal language model in this process: scores texts and generates completions.

Log-likelihoods are in bits. Each text is computed alone, so a number does not depend on other requests;
completions come from `generator`, which guarantees the same.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from assay.base.errors import ConfigError
from assay.base.seeds import derive_key
from assay.base.shapes import Float64, Int64
from assay.data.dataset.checkpoint_tokens import begin_ids, turn_end_ids
from assay.data.dataset.formats.boundaries import control_tokens, encode_guarded, guarded, pattern_of
from assay.data.dataset.formats.conversation_parts import GUARD
from assay.data.dataset.formats.template import ChatTemplate
from assay.distributed.rank_device import Precision, autocast, device_of
from assay.inference.local.generator import Generator
from assay.inference.local.memory import SLOTS
from assay.inference.local.stop_tokens import CompletionText
from assay.inference.local.streaming import TokenStreamer, TokenTexts, mean_state, scored
from assay.inference.protocol import (
    Completion,
    CompletionChunk,
    Engine,
    Message,
    SamplerError,
    SamplingParams,
    TextBits,
    TokenLogprob,
    check_prompt_budget,
)
from assay.inference.rollout import Prompt, Rollout
from assay.models.causal import CausalModel, end_ids


class LocalModel(Engine):
    """A language model of this process."""

    def __init__(
        self,
        model: CausalModel,
        *,
        name: str,
        device: torch.device | None = None,
        ends: Collection[int] = (),
        template: ChatTemplate | None = None,
        precision: Precision = "auto",
    ) -> None:
        """`name` identifies the model in digests, e.g. the digest of its weights; it gets the `precision` on a GPU, if
        that is bfloat16. On a CPU the model is computed in float32.

        A completion ends with an end token of the model, with the end-of-turn token of `template`, or with one of
        `ends`. Texts begin with the tokens that the tokenizer adds. Without a `template`, conversations are plain text.
        """
        self._device = device or device_of()
        self._autocast = autocast(precision if self._device.type == "cuda" else "float32", self._device)
        self.name = name if isinstance(self._autocast, nullcontext) else f"{name} in bfloat16"
        self.network: Final[Any] = model.network.to(self._device).eval()
        """`input_ids -> logits`, a Hugging Face model, in evaluation mode."""
        self.tokenizer: Final[Tokenizer] = model.tokenizer
        self.window_tokens: Final[int] = model.max_tokens
        """Longest sequence, completion included."""
        self.begin: Final = begin_ids(model.tokenizer)
        """Tokens that each text begins with."""
        named = (*ends, *end_ids(model.network), *turn_end_ids(template, model.tokenizer))
        self.ends: Final = tuple(dict.fromkeys(named))
        """Tokens that end a completion, the one of the trained rows first."""
        self.template: Final = template
        self.has_template: Final = template is not None
        self.texts: Final = TokenTexts(model.tokenizer)
        self.control: Final = pattern_of(control_tokens(model.tokenizer, template))
        self._generator = Generator(self.network, ends=self.ends, tokenizer=self.tokenizer, slots=SLOTS)

    def text_bits(self, text: str, *, window_tokens: int | None = None) -> TextBits:
        """Return the bits of each token, predicted from at least half a window (or all) of the text before it.

        The first token is predicted from the tokens that begin texts; without any, it costs log2 of the
        vocabulary. Raises `ConfigError` if the tokenizer cannot reproduce the text.
        """
        text, plain = guarded(text, self.control), text
        encoded = encode_guarded(self.tokenizer, text, add_special_tokens=False)
        if self.tokenizer.decode(encoded.ids, skip_special_tokens=False) != plain:
            raise ConfigError(
                "the tokenizer does not reproduce this text, so its bits would be of another text. Bits "
                "per byte need a lossless tokenizer, e.g. a byte-level BPE."
            )
        window = min(window_tokens or self.window_tokens, self.window_tokens)
        bytes_before = np.cumsum([0, *(len(item.encode()) if item != GUARD else 0 for item in text)])
        starts = bytes_before[np.array([offset for offset, _ in encoded.offsets], np.int64)]
        return TextBits(self._token_bits(encoded.ids, window), starts, int(bytes_before[-1]))

    def continuation_bits(self, prompt: str, continuation: str) -> tuple[float, int]:
        """Return the bits of a continuation of a prompt, and its number of tokens.

        White space at the prompt's end belongs to the continuation, as tokenizers expect it.
        """
        bare = prompt.rstrip()
        continuation = prompt[len(bare) :] + continuation
        before, whole = (self._ids(guarded(text, self.control)) for text in (bare, bare + continuation))
        num_tokens = max(1, len(whole) - len(before))
        if num_tokens + max(1, len(self.begin)) > self.window_tokens:
            raise ConfigError(f"a choice of {num_tokens} tokens does not fit the model's {self.window_tokens}.")
        window_ids = whole[-(self.window_tokens - max(1, len(self.begin))) :]
        bits = self._token_bits(window_ids, self.window_tokens)
        return float(bits[-num_tokens:].sum()), num_tokens

    def token_logprobs(self, tokens: Sequence[int], top_logprobs: int = 0) -> list[TokenLogprob]:
        """Return each token with its logprob given those before it, from one pass over them alone."""
        with self._autocast:
            return scored(self.network, tokens, self.texts, top_logprobs=top_logprobs)

    def vector(self, tokens: Sequence[int]) -> list[float]:
        """Return the mean of the last layer's states over the tokens."""
        with self._autocast:
            return mean_state(self.network, tokens)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [self.vector(self.tokens_of(text)) for text in texts]

    def stream(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        send: Callable[[CompletionChunk], None],
        *,
        top_logprobs: int | None = None,
        is_streamed: bool = True,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> list[Rollout]:
        """Return a rollout of each prompt, and send its text as it is sampled (see `TokenStreamer`)."""
        streamer = TokenStreamer(
            send,
            self.tokenizer,
            ends=self.ends,
            stop=params.stop,
            top_logprobs=top_logprobs,
            texts=self.texts,
            is_streamed=is_streamed,
        )
        with self._autocast:
            return self._generator.generate(prompts, params, is_stopping, streamer)

    def generate(
        self,
        prompts: Sequence[Sequence[Message]],
        params: SamplingParams,
        send: Callable[[CompletionChunk], None] | None = None,
    ) -> list[Completion | SamplerError]:
        """Return a completion of each conversation, and `send` its text as it is sampled.

        Samples depend on `params.seed` and the prompt only.

        Raises `ConfigError` if `params.max_tokens` leaves no room for a prompt.
        """
        check_prompt_budget(self.window_tokens, params)
        prompts_or_errors = [self._prompt(messages, params) for messages in prompts]
        whole = [found[0] for found in prompts_or_errors if not isinstance(found, SamplerError)]
        if send:
            rollouts = self.stream(whole, params, send)
        else:
            with self._autocast:
                rollouts = self._generator.generate(whole, params)
        remaining = iter(rollouts)
        return [
            found if isinstance(found, SamplerError) else self._completion(*found, next(remaining), params)
            for found in prompts_or_errors
        ]

    def conversation(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """Return the text and tokens of a conversation that waits for a completion."""
        if self.template is None:
            text = _as_text(messages)
            return text, self.tokens_of(text)
        text = self.template.render_prompt(guarded(messages, self.control), {}, "the conversation").text
        return text.replace(GUARD, ""), self._ids(text)  # the template writes the begin itself

    def tokens_of(self, text: str, *, has_start: bool = True, keeps_control: bool = False) -> list[int]:
        """Return a text's tokens after those that begin texts; control tokens in it are plain text unless kept."""
        tokens = self._ids(text if keeps_control else guarded(text, self.control))
        return [*self.begin, *tokens] if has_start else tokens

    def _ids(self, text: str) -> list[int]:
        return encode_guarded(self.tokenizer, text, add_special_tokens=False).ids

    def _prompt(self, messages: Sequence[Message], params: SamplingParams) -> tuple[Prompt, int] | SamplerError:
        """Return the prompt, truncated from the left if it is too long, and the number of tokens cut."""
        room = self.window_tokens - params.max_tokens
        text, tokens = self.conversation(messages)
        if not tokens:
            return SamplerError("request", "an empty prompt, and no token begins texts of this model.")
        key = derive_key(params.seed or 0, "sample", text)
        return Prompt(tokens[-room:], key), max(0, len(tokens) - room)

    def _completion(self, prompt: Prompt, num_cut: int, rollout: Rollout, params: SamplingParams) -> Completion:
        tokens = rollout.tokens.tolist()
        text = CompletionText(self.tokenizer, params.stop, self.ends).of(tokens)
        return Completion(text, rollout.reason, len(prompt.tokens), len(tokens), num_cut)

    @torch.inference_mode()
    def _token_bits(self, ids: Sequence[int], window: int) -> Float64[np.ndarray, "token"]:
        """Return the bits of `ids`, over overlapping windows."""
        begin = len(self.begin)
        sequence = torch.tensor([*self.begin, *ids], dtype=torch.long)
        found = np.zeros(len(sequence), np.float64)
        if not begin and len(ids):
            found[0] = math.log2(self.network.config.vocab_size)
        for first, tokens, num_new in _windows(sequence, window):
            with self._autocast:
                logits = self.network(input_ids=tokens[None].to(self._device)).logits[0].float()
            log_probabilities = torch.log_softmax(logits[:-1], dim=-1)
            picked = log_probabilities.gather(1, tokens[1:, None].to(self._device))[:, 0]
            new = picked.double().cpu().numpy()[-num_new:]
            found[first : first + num_new] = -new / math.log(2)
        return found[begin:]


def _windows(sequence: Int64[Tensor, "token"], window: int) -> Iterator[tuple[int, Int64[Tensor, "_"], int]]:
    """Yield (index of the first new token, the window's tokens, number of new tokens at its end); the first
    token is not predicted."""
    length, done, stride = len(sequence), 1, max(1, window // 2)
    while done < length:
        stop = min(length, window if done == 1 else done + stride)
        yield done, sequence[max(0, stop - window) : stop], stop - done
        done = stop


def _as_text(messages: Sequence[Message]) -> str:
    """Render a conversation as plain text for models without a chat template: `Role: content` lines.

    A single message is rendered as its content alone. Otherwise every line except a system message has its role as
    a prefix, and the text ends with `Assistant:`.
    """
    if len(messages) == 1:
        return messages[0]["content"]
    lines = [
        message["content"] if message["role"] == "system" else f"{message['role'].capitalize()}: {message['content']}"
        for message in messages
    ]
    return "\n".join([*lines, "Assistant:"])
