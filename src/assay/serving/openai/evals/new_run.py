"""Validates a new eval run: its file, and the weights of all models it uses."""

from typing import Any

from assay.records.eval_run import EvalCreated, EvalRunCreated
from assay.serving.api_error import ApiError
from assay.serving.evals.criteria import judges_of, read_criteria
from assay.serving.evals.data_source import CompletionsSource, FileId
from assay.serving.ids import new_id
from assay.serving.methods import SERVED_METHODS
from assay.serving.openai.app_state import AppState
from assay.serving.openai.bodies import parsed, request_sha256
from assay.serving.openai.evals.bodies import EvalRunBody

FILE_PURPOSE = "evals"


def run_created(app: AppState, of: EvalCreated, value: Any) -> EvalRunCreated:
    """Return the log entry that creates a run. Raises `ApiError` if the request is invalid."""
    _reject_stored_sources(value)
    body = parsed(EvalRunBody, value)
    source, criteria = body.data_source, read_criteria(of.testing_criteria)
    if isinstance(source, CompletionsSource) and not of.has_samples:
        raise ApiError(
            "This eval has no samples (data_source_config.include_sample_schema), so its criteria cannot read "
            "completions. Use a data source of type 'jsonl'.",
            param="data_source.type",
            code="invalid_value",
        )
    if isinstance(source.source, FileId):
        param = "data_source.source.id"
        app.files.usable(source.source.id, of.project, purpose=FILE_PURPOSE, param=param, users="eval runs")
    model = source.model if isinstance(source, CompletionsSource) else ""
    sources: dict[str, dict[str, Any]] = {}
    if model:
        sources[model] = _weights(app, of.project, model, "data_source.model")
    for judge in sorted(judges_of(criteria) - sources.keys()):
        if app.graders.judge is None or app.names.find(judge, of.project):
            sources[judge] = _weights(app, of.project, judge, "testing_criteria")
    now_s = app.clock.now_s()
    return EvalRunCreated(
        run_id=new_id("evalrun", now_s),
        eval_id=of.eval_id,
        project=of.project,
        at_s=now_s,
        name=body.name,
        data_source=value["data_source"],
        item_schema=of.item_schema,
        testing_criteria=of.testing_criteria,
        model=model,
        sources=sources,
        judge=app.graders.judge,
        metadata=body.metadata,
        request_sha256=request_sha256(of.project, f"evals.runs.create {of.eval_id}", value),
    )


def _reject_stored_sources(value: Any) -> None:
    """Raise `ApiError` for data sources of the API that are not served."""
    source = value.get("data_source") if isinstance(value, dict) else None
    if not isinstance(source, dict):
        return
    rows = source.get("source")
    for kind, where in (
        (source.get("type"), "type"),
        (rows.get("type") if isinstance(rows, dict) else None, "source.type"),
    ):
        if kind in ("responses", "stored_completions", "logs"):
            raise ApiError(
                f"'{kind}' is not supported, because completions are not stored. Send 'file_content' or 'file_id'.",
                param=f"data_source.{where}",
                code="data_source_not_served",
            )


def _weights(app: AppState, project: str, model: str, param: str) -> dict[str, Any]:
    found = app.names.find(model, project)
    if found is None:
        hint = "" if param != "testing_criteria" else " Name one of these, or start 'assay serve' with --judge URL."
        raise ApiError(
            f"There is no model {model!r:.160} in this project; 'models.list' returns the available ones.{hint}",
            param=param,
            code="model_not_found",
        )
    if not SERVED_METHODS[found.method].writes:
        raise ApiError(
            f"Model {model!r:.160} is of '{found.method}', which generates no text. Use another model.",
            param=param,
            code="model_cannot",
        )
    return found.source.model_dump(mode="json", exclude_none=True)
