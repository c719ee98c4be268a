"""API errors for requests whose engine fails or is busy."""

from assay.inference.protocol import RequestRejected
from assay.serving.api_error import RETRY_AFTER_S, ApiError


def engine_lost() -> ApiError:
    """The process died; a retry starts a new one."""
    return ApiError(
        "The process of this model died. Retry the request; a new process is started.",
        status=503,
        code="engine_died",
        headers={"retry-after": "1"},
    )


def took_too_long(limit_s: float) -> ApiError:
    """400, because a retry would take as long."""
    return ApiError(
        f"The response was not complete within {limit_s / 60:.0f} minutes. Request fewer prompts, choices or tokens.",
        code="answer_too_long",
    )


def engines_busy(max_models: int) -> ApiError:
    """503: all slots hold busy models."""
    return ApiError(
        f"All {max_models} models that this server may load are busy. Retry, or raise 'assay serve --engines'.",
        status=503,
        code="engines_busy",
        headers={"retry-after": str(RETRY_AFTER_S)},
    )


def rejected_by(rejected: RequestRejected) -> ApiError:
    """Convert an engine's rejection."""
    status = 500 if rejected.is_ours else 400
    return ApiError(rejected.message, status=status, param=rejected.param, code=rejected.code)
