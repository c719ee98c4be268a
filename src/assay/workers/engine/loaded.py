"""A loaded model as its engine asks it: an ask in, what it says out, one after another."""

from collections.abc import Callable
from pathlib import Path
from resource import getpagesize
from typing import Protocol

from assay.base.errors import ConfigError
from assay.inference.protocol import EngineRequest, EngineResponse, Ready

Tell = Callable[[EngineResponse], None]
IsStopping = Callable[[], bool]


class AskRefusedError(ConfigError):
    """The model cannot be asked so; `param` is that of the request."""

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class LoadedModel(Protocol):
    """One model."""

    @property
    def ready(self) -> Ready:
        """What it is."""
        ...

    def answer(self, ask: EngineRequest, tell: Tell, is_stopping: IsStopping) -> None:
        """Tell all that the ask comes to. `GenerationAbandonedError` once it is to stop, `AskRefusedError` or
        another of ours where it cannot be asked so."""
        ...


def cannot(ask: EngineRequest, ready: Ready) -> AskRefusedError:
    """A kind of ask for which the model is of another kind."""
    does = {
        "generate": "writes no text",
        "score": "finds no text likely or unlikely",
        "classify": "decides nothing",
        "embed": "has no vectors of texts",
    }[ask.type]
    kind = ready.kind.replace("_", " ")
    return AskRefusedError(
        f"This model is a {kind}, which {does}: ask another.", code="model_cannot", param="model"
    )


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


def refuse_long(num_tokens: int, window: int, *, param: str, of: str = "The prompt") -> None:
    """Raise where a sequence does not fit: nothing is cut unseen."""
    if num_tokens > window:
        raise AskRefusedError(
            f"{of} has {num_tokens:,} tokens, and the model takes {window:,}. Shorten it, or ask for fewer.",
            code="context_length_exceeded",
            param=param,
        )
