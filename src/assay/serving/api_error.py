"""API errors: one envelope with what is wrong and what to do.

The SDK distinguishes errors by status and retries 408, 409, 429 and 5xx only. Errors that would recur are therefore
400, 401, 403 or 404.
"""

from typing import Any

from assay.base.errors import StoreAwayError, StoreError

RETRY_AFTER_S = 5


class ApiError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers or {}

    def envelope(self) -> dict[str, Any]:
        """Return the response body."""
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def not_found(what: str, name: str, *, param: str | None = None) -> ApiError:
    """404; also used for resources of other projects, so that their existence is not revealed."""
    return ApiError(f"There is no {what} {name!r:.120} in this project.", status=404, param=param, code="not_found")


def checkpoint_gone(name: str, *, param: str = "model") -> ApiError:
    """404: the run deleted the checkpoint meanwhile."""
    return ApiError(
        f"{name:.160} was deleted by its run's retention. 'models.list' says which there are.",
        status=404,
        param=param,
        code="model_not_found",
    )


def busy(message: str, code: str) -> ApiError:
    """429: a shared resource is in use."""
    return ApiError(f"{message} Retry later.", status=429, code=code, headers={"retry-after": str(RETRY_AFTER_S)})


def store_in_trouble(error: StoreError) -> ApiError:
    """503: nothing was half created, and the same request can be retried."""
    kind = "store_away" if isinstance(error, StoreAwayError) else "store_error"
    headers = {"retry-after": str(RETRY_AFTER_S)}
    text = f"The store is unavailable. Retry the request. {error}"
    return ApiError(text, status=503, code=kind, headers=headers)


def not_served(route: str, meant: str | None = None) -> ApiError:
    """404 for an endpoint that is not served. `meant`: a served one with the correct base URL."""
    hint = (
        "See docs/compatibility.md for the served calls."
        if meant is None
        else f"{meant:.200} is served. Set the client's base_url to http://HOST:PORT/v1."
    )
    return ApiError(f"{route:.200} is not served here. {hint}", status=404, code="endpoint_not_served")
