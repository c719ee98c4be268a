"""What becomes of a request when its engine does not answer: it is told to come again."""

from assay.inference.protocol import RequestRejected
from assay.serving.refusal import RETRY_AFTER_S, RefusedError


def engine_lost() -> RefusedError:
    """Its process died with the request; the next one gets another."""
    return RefusedError(
        "The process of this model died before it had answered; ask again, and it is started anew.",
        status=503,
        code="engine_died",
        headers={"retry-after": "1"},
    )


def took_too_long(limit_s: float) -> RefusedError:
    """The next try would take as long."""
    return RefusedError(
        f"The answer was not complete within {limit_s / 60:.0f} minutes. Ask for fewer prompts, "
        "choices or tokens.",
        code="answer_too_long",
    )


def engines_busy(most: int) -> RefusedError:
    """All places are taken by models that are at work."""
    return RefusedError(
        f"All {most} models that this server has room for are answering others; ask again. 'assay serve "
        "--engines' says for how many there is room.",
        status=503,
        code="engines_busy",
        headers={"retry-after": str(RETRY_AFTER_S)},
    )


def refused_by(said: RequestRejected) -> RefusedError:
    """What an engine refuses, as an answer."""
    status = 500 if said.is_ours else 400
    return RefusedError(said.message, status=status, param=said.param, code=said.code)
