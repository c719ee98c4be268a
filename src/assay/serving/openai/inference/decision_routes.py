"""`decisions.create` and `embeddings.create`: classifiers, reward models and text vectors.

    binary classifier   -> predicate, or a choice between true and false
    classifier          -> choice; the choices are its classes
    reward model        -> score, without levels and probabilities

The model was trained for one question and reads no instructions, so instructions are rejected.
"""

import json
from typing import Any

from fastapi import APIRouter, Request

from assay.inference.protocol import Ready, Scored, ScoreRequest
from assay.serving.api_error import ApiError
from assay.serving.engines.process import EngineProcess
from assay.serving.openai.app_state import AppState
from assay.serving.openai.inference.engine_access import run_on_engine
from assay.serving.openai.inference.request_bodies import (
    DecisionQuestion,
    DecisionRequest,
    EmbeddingRequest,
    parse_request,
)
from assay.serving.openai.inference.responses import embeddings
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody

_SHOWN = 20
"""Classes listed in an error."""


def decision_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["inference"], dependencies=QUERY_CHECKED)

    @router.post("/decisions")
    async def decide(request: Request, json_body: JsonBody) -> dict[str, Any]:
        """Classify or score a text or a conversation."""
        body = parse_request(DecisionRequest, json_body.json())

        async def classify(engine: EngineProcess) -> Scored:
            _check_questions(body, engine.ready)
            return await engine.score(ScoreRequest(of="text", prompts=(body.prompt,)))

        response = await run_on_engine(app, request, body.model, classify)
        return {
            "answers": [_result(part, response.predictions[0]) for part in body.questions],
            "model": body.model,
            "usage": {
                "input_tokens": response.num_tokens,
                "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
                "output_tokens": 0,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": response.num_tokens,
            },
            "x_assay": {"predictions": response.predictions[0], "is_cut": bool(response.num_cut)},
        }

    @router.post("/embeddings")
    async def embed(request: Request, json_body: JsonBody) -> dict[str, Any]:
        """Embed texts."""
        body = parse_request(EmbeddingRequest, json_body.json())
        return await run_on_engine(app, request, body.model, lambda engine: embeddings(engine, body))

    return router


def _check_questions(body: DecisionRequest, ready: Ready) -> None:
    """Raise `ApiError` if the model cannot answer a question."""
    fitting = ("predicate", "choice") if ready.is_predicate else ("choice",) if ready.classes else ("score",)
    for index, part in enumerate(body.questions):
        where = f"questions.{index}"
        if ready.kind in ("classifier", "reward_model") and part.type not in fitting:
            raise ApiError(
                f"This model answers questions of type {' or '.join(fitting)}, not {part.type}. "
                f"Send {_question_for(ready)}.",
                param=f"{where}.type",
                code="invalid_value",
            )
        if part.type != "choice":
            if part.choices is not None:
                raise ApiError(
                    f"A question of type {part.type} has no choices.",
                    param=f"{where}.choices",
                    code="unknown_parameter",
                )
            continue
        requested = [choice.value for choice in part.choices or ()]
        allowed: list[Any] = [True, False] if ready.is_predicate else list(ready.classes)
        if sorted(map(repr, requested)) != sorted(map(repr, allowed)):
            raise ApiError(
                f"choices must be those the model was trained on: {', '.join(map(repr, allowed))}.",
                param=f"{where}.choices",
                code="invalid_value",
            )


def _question_for(ready: Ready) -> str:
    """Return an example of a question that the model answers."""
    if not ready.classes:
        kind = "predicate" if ready.is_predicate else "score"
        return json.dumps({"type": kind, "instructions": ""})
    shown = [json.dumps({"value": name}, ensure_ascii=False) for name in ready.classes[:_SHOWN]]
    more = f", and {len(ready.classes) - _SHOWN:,} more" if len(ready.classes) > _SHOWN else ""
    return f'{{"type": "choice", "instructions": "", "choices": [{", ".join(shown)}{more}]}}'


def _result(part: DecisionQuestion, row: dict[str, Any]) -> dict[str, Any]:
    named = {"type": part.type, "name": part.name}
    if part.type == "predicate":
        return {**named, "probability": row["probability"]}
    if part.type == "score":
        score = row["reward"] if "reward" in row else row["prediction"]
        return {**named, "score": score, "confidence": None, "probabilities": []}
    values = [option.value for option in part.choices or ()]
    of_value: dict[str | bool, float]
    if "probability" in row:
        of_value = {True: row["probability"], False: 1 - row["probability"]}
    else:
        of_value = {value: row[f"probability_{value}"] for value in values}
    choice = max(values, key=lambda value: of_value[value])
    shares = [{"value": value, "probability": of_value[value]} for value in values]
    return {**named, "choice": choice, "confidence": of_value[choice], "probabilities": shares}
