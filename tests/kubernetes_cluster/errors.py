"""Errors of the API, with the codes, reasons and messages of a real API server."""

from typing import Any

from kubernetes_cluster.kinds import Kind

Object = dict[str, Any]


class ApiError(Exception):
    """A response that is not a success; its body is a `Status` object."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details

    def status(self) -> Object:
        """Return the body of the response."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def not_found(kind: Kind, name: str) -> ApiError:
    """404: no object has this name."""
    return ApiError(404, "NotFound", f'{kind.qualified} "{name}" not found', **_names(kind, name))


def already_exists(kind: Kind, name: str) -> ApiError:
    """409: the name is taken."""
    return ApiError(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists', **_names(kind, name))


def conflict(kind: Kind, name: str) -> ApiError:
    """409: the resourceVersion in the request is not the object's."""
    message = (
        f'Operation cannot be fulfilled on {kind.qualified} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return ApiError(409, "Conflict", message, **_names(kind, name))


def invalid(kind: Kind, name: str, problems: list[str]) -> ApiError:
    """422: fields that a schema accepts and a rule does not."""
    listed = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    subject = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    causes = [{"field": problem.partition(":")[0], "message": problem.partition(": ")[2]} for problem in problems]
    return ApiError(422, "Invalid", f'{subject} "{name}" is invalid: {listed}', causes=causes, **_names(kind, name))


def forbidden(kind: Kind, name: str, why: str) -> ApiError:
    """403: by an admission rule, or by the roles of the user."""
    subject = f'{kind.qualified} "{name}"' if name else kind.qualified
    return ApiError(403, "Forbidden", f"{subject} is forbidden: {why}", **_names(kind, name))


def bad_request(message: str) -> ApiError:
    """400: a body that is no object of its kind."""
    return ApiError(400, "BadRequest", message)


def _names(kind: Kind, name: str) -> dict[str, str]:
    return {"name": name, "group": kind.group, "kind": kind.resource}
