"""Engine of a classifier or a reward model: predictions and embeddings of texts and conversations."""

from collections.abc import Sequence

import pyarrow as pa

from assay.data.dataset.formats.boundaries import encode_as_text
from assay.inference.protocol import (
    Embedded,
    EmbedRequest,
    EngineRequest,
    PromptInput,
    Ready,
    Scored,
    ScoreRequest,
    Tokenized,
    TokenizeRequest,
)
from assay.serving.methods import BETWEEN_MESSAGES
from assay.training.trainer.method_config import BinaryPredictions, ClassPredictions, Predictions
from assay.workers.engine.requests import (
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
        """What the model is."""
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
        """Send all responses of a request. Raises `RequestRejectedError` for invalid requests."""
        match request:
            case ScoreRequest(of="text") if self._can_decide:
                tokens, num_cut = self._read(request.prompts)
                columns = self._predictor.row_predictor.predict(tokens, self._missing(len(tokens)))
                rows = tuple({name: values[row] for name, values in columns.items()} for row in range(len(tokens)))
                send(Scored(predictions=rows, num_tokens=sum(map(len, tokens)), num_cut=num_cut))
            case EmbedRequest() if self._predictor.row_predictor.embeds:
                tokens, num_cut = self._read(request.prompts)
                vectors = tuple(map(tuple, self._predictor.row_predictor.embeddings(tokens, self._missing(1))))
                send(Embedded(vectors=vectors, num_tokens=sum(map(len, tokens)), num_cut=num_cut))
            case TokenizeRequest():
                send(self._tokenized(request))
            case _:
                raise unsupported(request, self.ready)

    def _missing(self, num_rows: int) -> dict[str, pa.Array]:
        return {name: pa.nulls(num_rows, kind) for name, kind in self._predictor.columns.items()}

    def _read(self, prompts: Sequence[PromptInput]) -> tuple[list[Sequence[int]], int]:
        """Return the tokens of the prompts, and how many of them were cut."""
        read = [self._tokens(prompt) for prompt in prompts]
        return [tokens for tokens, _ in read], sum(is_cut for _, is_cut in read)

    def _tokens(self, prompt: PromptInput) -> tuple[Sequence[int], bool]:
        """Return a prompt's tokens, and whether it was cut."""
        tokens: Sequence[int]
        is_cut = False
        if prompt.tokens is not None:
            check_length(len(prompt.tokens), self._predictor.max_tokens, param="input", of="The input")
            tokens = prompt.tokens
        elif self._predictor.rewards is not None:
            row = {"messages": list(prompt.messages)} if prompt.messages is not None else {"text": prompt.text}
            (tokens, *_) = self._predictor.rewards.sequences(row, "the input", "text") or [[]]
        else:
            text = prompt.text or ""
            if prompt.messages is not None:  # as in a training file
                text = BETWEEN_MESSAGES.join(message["content"] for message in prompt.messages)
            (encoding,) = encode_as_text(self._predictor.tokenizer, [text])
            tokens, is_cut = encoding.ids, bool(encoding.overflowing)
        if not tokens:
            raise RequestRejectedError("The input is empty.", code="invalid_value", param="input")
        return tokens, is_cut

    def _tokenized(self, request: TokenizeRequest) -> Tokenized:
        tokenizer = self._predictor.tokenizer
        if request.tokens is None:
            return Tokenized(
                tokens=tuple(tokenizer.encode(request.text or "", add_special_tokens=request.has_start).ids)
            )
        return Tokenized(text=tokenizer.decode(list(request.tokens), skip_special_tokens=False))
