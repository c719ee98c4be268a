"""Checks of requests that the engines of all kinds of models share."""

from collections.abc import Callable
from pathlib import Path
from resource import getpagesize

from assay.base.errors import ConfigError
from assay.inference.protocol import EngineRequest, EngineResponse, Ready, ScoreRequest

Send = Callable[[EngineResponse], None]
IsStopping = Callable[[], bool]


class RequestRejectedError(ConfigError):
    """An invalid request; `param`: of the API request."""

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def unsupported(request: EngineRequest, ready: Ready) -> RequestRejectedError:
    """Return the error of a request that this kind of model does not support."""
    does = {"generate": "does not generate text", "score": "does not score text", "embed": "does not embed text"}
    cannot = "does not classify" if isinstance(request, ScoreRequest) and request.of == "text" else does[request.type]
    kind = ready.kind.replace("_", " ")
    return RequestRejectedError(
        f"This model is a {kind}, which {cannot}. Use another model.", code="model_cannot", param="model"
    )


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


def check_length(num_tokens: int, window: int, *, param: str, of: str = "The prompt") -> None:
    """Raise `RequestRejectedError` if a sequence is too long; nothing is truncated silently."""
    if num_tokens > window:
        raise RequestRejectedError(
            f"{of} has {num_tokens:,} tokens, but the model's limit is {window:,}. Shorten it, or request fewer.",
            code="context_length_exceeded",
            param=param,
        )
