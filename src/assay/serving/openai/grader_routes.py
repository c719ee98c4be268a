"""`fine_tuning.alpha.graders.*`: validate a grader, or run it on one sample."""

from typing import Any

from fastapi import APIRouter, Request

from assay.serving.graders import ERRORS, SampleGrade
from assay.serving.openai.app_state import AppState, project_of, while_connected
from assay.serving.openai.bodies import StrictBody
from assay.serving.openai.openapi import QUERY_CHECKED, JsonBody, declares


class GraderBody(StrictBody):
    """`graders.validate`."""

    grader: dict[str, Any]


class GraderRunBody(GraderBody):
    """`graders.run`."""

    model_sample: str
    item: dict[str, Any] | None = None


def grader_routes(app: AppState) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/fine_tuning/alpha/graders", tags=["graders"], dependencies=QUERY_CHECKED)

    @router.post("/validate", openapi_extra=declares(body=GraderBody))
    async def validate(request: Request, body: JsonBody) -> dict[str, Any]:
        """Validate a grader and return it."""
        grader = body.parsed(GraderBody).grader
        await while_connected(request, app.graders.check(project_of(request), grader))
        return {"grader": grader}

    @router.post("/run", openapi_extra=declares(body=GraderRunBody))
    async def run(request: Request, body: JsonBody) -> dict[str, Any]:
        """Grade one sample."""
        return _shape(await while_connected(request, _graded(app, project_of(request), body.parsed(GraderRunBody))))

    return router


async def _graded(app: AppState, project: str, body: GraderRunBody) -> SampleGrade:
    grader = await app.graders.check(project, body.grader)
    return await app.graders.run(project, grader, body.model_sample, body.item or {})


def _shape(graded: SampleGrade) -> dict[str, Any]:
    """`GraderRunResponse`."""
    grade, failure = graded.grade, graded.grade.failure
    text = None if failure is None else failure.text
    errors: dict[str, Any] = {name: name == graded.error for name in ERRORS}
    errors["model_grader_server_error_details"] = text if graded.error == "model_grader_server_error" else None
    errors["python_grader_runtime_error_details"] = text if graded.error == "python_grader_runtime_error" else None
    errors["python_grader_server_error_type"] = text if graded.error == "python_grader_server_error" else None
    scores = dict(grade.parts) or ({} if grade.score is None else {graded.grader.name: grade.score})
    return {
        "reward": grade.score,
        "sub_rewards": dict(grade.parts),
        "metadata": {
            "errors": errors,
            "execution_time": graded.seconds,
            "name": graded.grader.name,
            "sampled_model_name": getattr(graded.grader, "model", None),
            "scores": scores,
            "token_usage": None,
            "type": graded.grader.type,
        },
        "model_grader_token_usage_per_model": {},
        "x_assay": {
            "failure": None if failure is None else {"kind": failure.kind, "text": failure.text},
            "label": grade.label,
        },
    }
