"""A run that is asked for: its rows are looked for, and the weights of every model that it asks are named."""

from typing import Any

from assay.records.eval_run import EvalCreated, EvalRunCreated
from assay.serving.evals.criteria import judges_of, read_criteria
from assay.serving.evals.data_source import CompletionsSource, EvalSource, FileId
from assay.serving.ids import new_id
from assay.serving.methods import SERVED_METHODS
from assay.serving.openai.bodies import parsed, request_sha256
from assay.serving.openai.evals.bodies import EvalRunBody
from assay.serving.openai.place import Place
from assay.serving.refusal import RefusedError

FILE_PURPOSE = "evals"


def run_created(place: Place, of: EvalCreated, value: Any) -> EvalRunCreated:
    """The entry that makes a run; a 400 says what is wrong with it."""
    _refuse_stored(value)
    body = parsed(EvalRunBody, value)
    source, criteria = body.data_source, read_criteria(of.testing_criteria)
    if isinstance(source, CompletionsSource) and not of.has_samples:
        raise RefusedError(
            "This eval has no samples (data_source_config.include_sample_schema), so nothing would read what "
            "the model says. Use a data source of type 'jsonl'.",
            param="data_source.type",
            code="invalid_value",
        )
    _check_file(place, of.project, source)
    model = source.model if isinstance(source, CompletionsSource) else ""
    sources: dict[str, dict[str, Any]] = {}
    if model:
        sources[model] = _weights(place, of.project, model, "data_source.model")
    for judge in sorted(judges_of(criteria) - sources.keys()):
        if place.graders.judge is None or place.names.find(judge, of.project):
            sources[judge] = _weights(place, of.project, judge, "testing_criteria")
    now_s = place.clock.now_s()
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
        judge=place.graders.judge,
        metadata=body.metadata,
        request_sha256=request_sha256(of.project, f"evals.runs.create {of.eval_id}", value),
    )


def _refuse_stored(value: Any) -> None:
    """Name what the API knows and this server has not."""
    source = value.get("data_source") if isinstance(value, dict) else None
    if not isinstance(source, dict):
        return
    rows = source.get("source")
    for kind, where in (
        (source.get("type"), "type"),
        (rows.get("type") if isinstance(rows, dict) else None, "source.type"),
    ):
        if kind in ("responses", "stored_completions", "logs"):
            raise RefusedError(
                f"'{kind}' is not served: answers are not stored here. Give the items as 'file_content' or "
                "'file_id'.",
                param=f"data_source.{where}",
                code="data_source_not_served",
            )


def _weights(place: Place, project: str, model: str, param: str) -> dict[str, Any]:
    found = place.names.find(model, project)
    if found is None:
        cure = (
            ""
            if param != "testing_criteria"
            else " Name one of these, or start 'assay serve' with --judge URL."
        )
        raise RefusedError(
            f"There is no model {model!r:.160} in this project; 'models.list' says which there are.{cure}",
            param=param,
            code="model_not_found",
        )
    if not SERVED_METHODS[found.method].writes:
        raise RefusedError(
            f"Model {model!r:.160} is of '{found.method}', which writes no text: ask another.",
            param=param,
            code="model_cannot",
        )
    return found.source.model_dump(mode="json", exclude_none=True)


def _check_file(place: Place, project: str, source: EvalSource) -> None:
    if not isinstance(source.source, FileId):
        return
    file = place.files.find(source.source.id, project)
    if file is None:
        raise RefusedError(
            f"There is no file {source.source.id!r:.120} in this project.",
            param="data_source.source.id",
            code="file_not_found",
        )
    if file.purpose != FILE_PURPOSE:
        raise RefusedError(
            f"File {source.source.id} was uploaded with purpose '{file.purpose}'; a run reads files of purpose "
            f"'{FILE_PURPOSE}'. Upload it again with that.",
            param="data_source.source.id",
            code="invalid_file_purpose",
        )
