"""Engine of a classifier or a reward model: predictions and embeddings of texts and conversations."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from assay.data.dataset.formats.boundaries import encode_as_text
from assay.inference.protocol import (
    Classified,
    ClassifyRequest,
    Embedded,
    EmbedRequest,
    EngineRequest,
    PromptInput,
    Ready,
    Tokenized,
    TokenizeRequest,
)
from assay.serving.methods import BETWEEN_MESSAGES
from assay.training.trainer.method_config import BinaryPredictions, ClassPredictions, Predictions
from assay.workers.engine.loaded import (
    IsStopping,
    RequestRejectedError,
    Send,
    check_length,
    resident_bytes,
    unsupported,
)
from assay.workflows.export.predict import Predictor


class PredictingEngine:
    """Serves a `Predictor`. Input columns other than the text are null."""

    def __init__(self, predictor: Predictor, digest: str, predictions: Predictions, *, can_decide: bool = True) -> None:
        """`can_decide`: whether its head was trained."""
        self._predictor = predictor
        self._digest = digest
        self._predictions = predictions
        self._can_decide = can_decide

    @property
    def ready(self) -> Ready:
        """See `LoadedModel`."""
        is_reward = self._predictor.rewards is not None
        kind = self._predictions
        return Ready(
            kind="reward_model" if is_reward else "classifier" if self._can_decide else "encoder",
            digest=self._digest,
            window_tokens=self._predictor.max_tokens,
            classes=kind.names if isinstance(kind, ClassPredictions) else (),
            is_predicate=isinstance(kind, BinaryPredictions),
            resident_bytes=resident_bytes(),
        )

    def handle(self, request: EngineRequest, send: Send, is_stopping: IsStopping) -> None:  # noqa: ARG002
        """See `LoadedModel`."""
        match request:
            case ClassifyRequest() if self._can_decide:
                read = [self._read(prompt) for prompt in request.prompts]
                tokens = [item.tokens for item in read]
                columns = self._predictor.row_predictor.predict(tokens, self._missing(len(read)))
                rows = tuple({name: values[row] for name, values in columns.items()} for row in range(len(read)))
                send(Classified(predictions=rows, num_tokens=sum(map(len, tokens)), num_cut=_num_cut(read)))
            case EmbedRequest() if self._predictor.row_predictor.embeds:
                read = [self._read(prompt) for prompt in request.prompts]
                tokens = [item.tokens for item in read]
                vectors = self._predictor.row_predictor.embeddings(tokens, self._missing(1))
                send(
                    Embedded(
                        vectors=tuple(map(tuple, vectors)), num_tokens=sum(map(len, tokens)), num_cut=_num_cut(read)
                    )
                )
            case TokenizeRequest():
                send(self._tokenized(request))
            case _:
                raise unsupported(request, self.ready)

    def _missing(self, num_rows: int) -> dict[str, pa.Array]:
        return {name: pa.nulls(num_rows, kind) for name, kind in self._predictor.columns.items()}

    def _read(self, prompt: PromptInput) -> "_Read":
        if prompt.tokens is not None:
            check_length(len(prompt.tokens), self._predictor.max_tokens, param="input", of="The input")
            found = _Read(prompt.tokens)
        elif self._predictor.rewards is not None:
            row = {"messages": list(prompt.messages)} if prompt.messages is not None else {"text": prompt.text}
            (sequence, *_) = self._predictor.rewards.sequences(row, "the input", "text") or [[]]
            found = _Read(sequence)
        else:
            text = prompt.text or ""
            if prompt.messages is not None:  # as in a training file
                text = BETWEEN_MESSAGES.join(message["content"] for message in prompt.messages)
            (encoding,) = encode_as_text(self._predictor.tokenizer, [text])
            found = _Read(encoding.ids, is_cut=bool(encoding.overflowing))
        if not found.tokens:
            raise RequestRejectedError("The input is empty.", code="invalid_value", param="input")
        return found

    def _tokenized(self, request: TokenizeRequest) -> Tokenized:
        tokenizer = self._predictor.tokenizer
        if request.tokens is None:
            return Tokenized(
                tokens=tuple(tokenizer.encode(request.text or "", add_special_tokens=request.has_start).ids)
            )
        return Tokenized(text=tokenizer.decode(list(request.tokens), skip_special_tokens=False))


class _Read(NamedTuple):
    tokens: Sequence[int]
    is_cut: bool = False


def _num_cut(read: Sequence[_Read]) -> int:
    return sum(item.is_cut for item in read)
