"""Loads a model from a run's commit or from a base model's recipe."""

from datetime import UTC, date, datetime

from assay.base.clock import SystemClock
from assay.data.dataset.tokens import tokenizer_file
from assay.evals.commit_model import digest_of, load_committed, load_initial
from assay.inference.protocol import ModelSource
from assay.serving.base_models import template_recipe
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.methods.registry import exportable_method
from assay.training.recipe import recipe_of
from assay.workers.engine.language import LanguageEngine
from assay.workers.engine.predicting import PredictingEngine
from assay.workers.engine.requests import RequestRejectedError
from assay.workflows.evaluation.evaluate import beginning_model, language_model
from assay.workflows.export.export import NAME_IT
from assay.workflows.export.predict import run_predictor, untrained_predictor
from assay.workflows.run import find_commit, load_run


def load(home: Home, source: ModelSource) -> LanguageEngine | PredictingEngine:
    """Load a model. Raises `AssayError`."""
    if source.run_id is not None:
        return _of_run(home, source.run_id, source.step)
    return _of_base(source)


def _of_run(home: Home, run_id: str, step: int | None) -> LanguageEngine | PredictingEngine:
    run = load_run(home, run_id)
    log, config = CommitLog(open_store(run.store_url)), recipe_of(run).method
    commit = find_commit(run, log, step)
    if exportable_method(config).form == "language_model":
        model = load_committed(run, commit, log.store)
        found = language_model(run, model, commit, hint=NAME_IT, chat_day=_today())
        return LanguageEngine(found, commit.weights_digest)
    predictor = run_predictor(run, commit, tokenizer=None)
    return PredictingEngine(predictor, commit.weights_digest, config.predictions)


def _of_base(source: ModelSource) -> LanguageEngine | PredictingEngine:
    assert source.recipe is not None and source.tokenizer is not None and source.max_tokens is not None
    recipe = template_recipe(source.recipe)
    config = recipe.method
    initial = getattr(config, "model", None) or getattr(config, "encoder", None)
    if getattr(initial, "type", None) != "pretrained":
        raise RequestRejectedError(
            "This base model has no weights: its jobs start from random initialization. Use a trained model.",
            code="model_has_no_weights",
            param="model",
        )
    model = load_initial(recipe)
    digest = digest_of(model)
    if exportable_method(config).form == "language_model":
        template = source.chat_template
        found = beginning_model(model, source.tokenizer, digest, chat_template=template, chat_day=_today())
        return LanguageEngine(found, digest)
    predictor = untrained_predictor(recipe, model, tokenizer_file(source.tokenizer), source.max_tokens)
    return PredictingEngine(predictor, digest, config.predictions, can_decide=False)


def _today() -> date:
    return datetime.fromtimestamp(SystemClock().now_s(), UTC).date()
