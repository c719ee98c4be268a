"""What a client is told when its request is not served: one envelope, with what is wrong and the cure.

The SDK tells errors apart by their status, repeats 408, 409, 429 and everything from 500 on, and nothing
else. So what would be refused again is a 400, 401, 403 or 404.
"""

from typing import Any

from assay.base.errors import StoreAwayError, StoreError

RETRY_AFTER_S = 5


class RefusedError(Exception):
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
        """The body of the answer."""
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def not_found(what: str, name: str, *, param: str | None = None) -> RefusedError:
    """There is none, or it is another project's: nobody learns which."""
    return RefusedError(
        f"There is no {what} {name!r:.120} in this project.", status=404, param=param, code="not_found"
    )


def checkpoint_gone(name: str, *, param: str = "model") -> RefusedError:
    """It was named while its run deleted it."""
    return RefusedError(
        f"{name:.160} is gone: its run has newer checkpoints, and kept this one for nobody. 'models.list' says "
        "which there are.",
        status=404,
        param=param,
        code="model_not_found",
    )


def busy(message: str, code: str) -> RefusedError:
    """Something that is held by others, or by the client's own requests, for now."""
    return RefusedError(
        f"{message} Ask again later.", status=429, code=code, headers={"retry-after": str(RETRY_AFTER_S)}
    )


def store_in_trouble(error: StoreError) -> RefusedError:
    """Nothing was half made: what is not whole is not there. The same request goes on later."""
    kind = "store_away" if isinstance(error, StoreAwayError) else "store_error"
    headers = {"retry-after": str(RETRY_AFTER_S)}
    said = f"The store does not take this now; ask again. {error}"
    return RefusedError(said, status=503, code=kind, headers=headers)


def not_served(route: str, meant: str | None = None) -> RefusedError:
    """A call of the SDK that nobody answers here, on purpose; `meant`: one that is served, which a client with
    the right base URL would have asked."""
    cure = (
        "What is stands in docs/compatibility.md."
        if meant is None
        else f"{meant:.200} is: a client's base_url ends in /v1, once (http://HOST:PORT/v1)."
    )
    return RefusedError(
        f"{route:.200} is not served here. {cure}",
        status=404,
        code="endpoint_not_served",
    )
