"""`decisions.create` and `embeddings.create`: what classifiers and reward models answer, and texts as vectors.

    a classifier of one thing  -> predicate, or a choice between true and false
    a classifier of classes    -> choice; its own classes are the choices
    a reward model, a number   -> score; it has no levels, so no probabilities of any

The model was trained for one question and reads no instructions: who gives some is told.
"""

import json
from typing import Any

from fastapi import APIRouter, Request

from assay.inference.protocol import Classified, ClassifyRequest, Engine, EngineResponse, Ready
from assay.serving.openai.bodies import read_json
from assay.serving.openai.inference.answers import embeddings, only_answer
from assay.serving.openai.inference.asking import ask_model
from assay.serving.openai.inference.questions import (
    DecisionPart,
    DecisionQuestion,
    EmbeddingQuestion,
    read_question,
)
from assay.serving.openai.place import Place, query_of
from assay.serving.refusal import RefusedError

_SHOWN = 20
"""Classes that an error names."""


def decision_routes(place: Place) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["inference"])

    @router.post("/decisions")
    async def decide(request: Request) -> dict[str, Any]:
        """Ask a classifier or a reward model about a text or a conversation."""
        query_of(request)
        asked = read_question(DecisionQuestion, await read_json(request))

        async def classify(engine: Engine) -> EngineResponse:
            _check_questions(asked, engine.ready)
            return await only_answer(engine.stream, ClassifyRequest(prompts=(asked.prompt,)))

        said = await ask_model(place, request, asked.model, classify)
        assert isinstance(said, Classified)
        return {
            "answers": [_answer(part, said.answers[0]) for part in asked.questions],
            "model": asked.model,
            "usage": {
                "input_tokens": said.num_tokens,
                "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
                "output_tokens": 0,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": said.num_tokens,
            },
            "x_assay": {"answers": said.answers[0], "is_cut": bool(said.num_cut)},
        }

    @router.post("/embeddings")
    async def embed(request: Request) -> dict[str, Any]:
        """Texts as vectors."""
        query_of(request)
        asked = read_question(EmbeddingQuestion, await read_json(request))
        return await ask_model(place, request, asked.model, lambda engine: embeddings(engine.stream, asked))

    return router


def _check_questions(asked: DecisionQuestion, ready: Ready) -> None:
    """Raise where the model's answer is none to a question."""
    fitting = ("predicate", "choice") if ready.is_predicate else ("choice",) if ready.classes else ("score",)
    for place, part in enumerate(asked.questions):
        where = f"questions.{place}"
        if ready.kind in ("classifier", "reward_model") and part.type not in fitting:
            raise RefusedError(
                f"This model answers a {' or a '.join(fitting)}, and no {part.type}. "
                f"Ask {_question_for(ready)}.",
                param=f"{where}.type",
                code="invalid_value",
            )
        if part.type != "choice":
            if part.choices is not None:
                raise RefusedError(
                    f"A {part.type} has no choices.", param=f"{where}.choices", code="unknown_parameter"
                )
            continue
        given = [choice.value for choice in part.choices or ()]
        there: list[Any] = [True, False] if ready.is_predicate else list(ready.classes)
        if sorted(map(repr, given)) != sorted(map(repr, there)):
            raise RefusedError(
                f"The choices of this model are {', '.join(map(repr, there))}: it was trained on these.",
                param=f"{where}.choices",
                code="invalid_value",
            )


def _question_for(ready: Ready) -> str:
    """The question that a model answers, as a request has it."""
    if not ready.classes:
        kind = "predicate" if ready.is_predicate else "score"
        return json.dumps({"type": kind, "instructions": ""})
    shown = [json.dumps({"value": name}, ensure_ascii=False) for name in ready.classes[:_SHOWN]]
    more = f", and {len(ready.classes) - _SHOWN:,} more" if len(ready.classes) > _SHOWN else ""
    return f'{{"type": "choice", "instructions": "", "choices": [{", ".join(shown)}{more}]}}'


def _answer(part: DecisionPart, row: dict[str, Any]) -> dict[str, Any]:
    named = {"type": part.type, "name": part.name}
    if part.type == "predicate":
        return {**named, "probability": row["probability"]}
    if part.type == "score":
        score = row["reward"] if "reward" in row else row["prediction"]
        return {**named, "score": score, "confidence": None, "probabilities": []}
    values = [each.value for each in part.choices or ()]
    of_value: dict[str | bool, float]
    if "probability" in row:
        of_value = {True: row["probability"], False: 1 - row["probability"]}
    else:
        of_value = {value: row[f"probability_{value}"] for value in values}
    choice = max(values, key=lambda value: of_value[value])
    shares = [{"value": value, "probability": of_value[value]} for value in values]
    return {**named, "choice": choice, "confidence": of_value[choice], "probabilities": shares}
