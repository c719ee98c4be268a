"""A server without a socket, and the official SDK before it."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, reduce
from pathlib import Path
from typing import Any, cast

import openai
import yaml
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.data.dataset.tokens import train_tokenizer
from assay.records.api_key import KeyScope
from assay.serving.base_models import read_base_models
from assay.serving.openai.app import make_api
from assay.serving.openai.app_state import AppState
from assay.serving.openai.auth_middleware import AuthMiddleware
from assay.store.objects import ObjectStore, open_store
from clocks import ManualClock

RECIPE = {
    "loader": {"lanes": 8, "global_batch_size": 32, "window_rows": 16, "threads": 1},
    "method": {
        "type": "classify",
        "encoder": {
            "type": "new", "vocab_size": 300, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
            "intermediate_size": 32, "max_tokens": 128, "dropout": 0.1, "attention_dropout": 0.1,
        },
    },
    "trainer": {"commit_every": 5, "optimizer": {"learning_rate": 1e-3}},
}  # fmt: skip
"""A model of some ten thousand weights."""
TALKING = {
    **RECIPE,
    "method": {
        "type": "sft", "train_on": "spans",
        "model": {
            "type": "new", "vocab_size": 300, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
            "intermediate_size": 32, "max_tokens": 128,
        },
    },
}  # fmt: skip
"""Likewise, which writes."""


def write_models(folder: Path, *, method: str = "classification", **changes: Any) -> Path:
    """A folder with one base model, `tiny`, and a tokenizer that a test may replace."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(["a model answers"], vocab_size=300).save(str(folder / "tokenizer.json"))
    recipe = RECIPE if method == "classification" else TALKING
    trainable = {"recipe": recipe, "max_tokens": 128, "auto": {"n_epochs": 2}, **changes}
    model = {"tokenizer": "tokenizer.json", "methods": {method: trainable}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(model))
    return folder


def app_in(folder: Path, store: ObjectStore | None = None, *, method: str = "classification") -> AppState:
    """What a server has, in memory unless a store is given; its clock stands until a test moves it.

    `method`: by which its one model is trained; one of `supervised` writes."""
    clock, store = ManualClock(1_800_000_000.0), store or open_store("memory:")
    models = read_base_models(write_models(folder / "models", method=method))
    return AppState.of(store, models, clock)


def http_of(app: AppState) -> TestClient:
    """Plain HTTP, as any client sends it."""
    return TestClient(server_of(app), base_url="http://localhost", raise_server_exceptions=False)


def server_of(app: AppState) -> ASGIApp:
    """`make_app(app)`, with routes that are built once for all states: building takes longer than most tests."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        routes = _routes()
        _requested.set(app)
        await routes(scope, receive, send)

    return AuthMiddleware(respond, app.keys)


_requested: ContextVar[AppState | None] = ContextVar("the state of the server that was sent a request", default=None)


class _RequestedState:
    """Stands for that state in the routes, and for what they take from it while they are built."""

    def __init__(self, *path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return _RequestedState(*self._path, name) if _requested.get() is None else getattr(self._found(), name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._found()(*arguments, **named)

    def _found(self) -> Any:
        return reduce(getattr, self._path, _requested.get())


@cache
def _routes() -> FastAPI:
    return make_api(cast(AppState, _RequestedState()))


def opening(app: AppState) -> Callable[[str], dict[str, str]]:
    """The header that opens a path: with an admin's key where it is the organization's."""
    scopes: dict[bool, tuple[KeyScope, ...]] = {True: ("admin",), False: ("read", "write")}
    secrets = {
        of_all: app.keys.make(project="default", name="", scopes=item, lives_s=None).secret
        for of_all, item in scopes.items()
    }
    return lambda path: {"authorization": f"Bearer {secrets['/organization/' in path]}"}


def sdk_of(app: AppState) -> openai.OpenAI:
    """The SDK, which asks once."""
    return openai.OpenAI(base_url="http://localhost/v1", api_key="any", http_client=http_of(app), max_retries=0)
