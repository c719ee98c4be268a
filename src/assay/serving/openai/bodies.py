"""Request bodies. An unknown or invalid parameter is a 400 that names it.

All request JSON is read here, so size, nesting and encoding are checked first.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError, field_validator

from assay.base.digest import sha256_of_json
from assay.base.parsing.nesting import TooDeepError, object_of_pairs, parse_json
from assay.scoring.json_lines import holds_nul
from assay.serving.api_error import ApiError

if TYPE_CHECKING:  # workers also parse bodies, without starlette
    from starlette.requests import Request

MAX_JSON_BYTES = 1 << 20
MAX_SEED = 2**31 - 1
MAX_UPLOAD_BYTES = 1 << 40
BodyT = TypeVar("BodyT", bound=BaseModel)


class StrictBody(BaseModel):
    """A JSON body, or a part of one. Unknown parameters are invalid."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Metadata = dict[Annotated[str, Field(max_length=64, min_length=1)], Annotated[str, Field(max_length=512)]]
NumberOrAuto = Literal["auto"] | float | int


class MethodBody(StrictBody):
    """`method` of a job: its type, and hyperparameters under the type's name."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    type: str


class OurJobBody(StrictBody):
    """`x_assay` of jobs.create and jobs.resume."""

    budget_device_hours: PositiveFloat | None = Field(default=None, allow_inf_nan=False)


class JobBody(StrictBody):
    """`fine_tuning.jobs.create`."""

    model: str
    training_file: str
    validation_file: str | None = None
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    suffix: str | None = Field(default=None, min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")
    metadata: Metadata | None = Field(default=None, max_length=16)
    method: MethodBody | None = None
    hyperparameters: dict[str, NumberOrAuto] | None = None
    integrations: list[Any] | None = None
    x_assay: OurJobBody = OurJobBody()

    @field_validator("integrations")
    @classmethod
    def _are_not_served(cls, integrations: list[Any] | None) -> None:
        if integrations:
            raise ValueError(
                "integrations are not supported. Configure 'sinks' in settings.yaml to send metrics to W&B"
            )


class ExpiresAfterBody(StrictBody):
    """`expires_after` of a file: lifetime from creation."""

    anchor: str
    seconds: int


class UploadBody(StrictBody):
    """`uploads.create`."""

    bytes: int = Field(gt=0, le=MAX_UPLOAD_BYTES)
    filename: str
    mime_type: str = Field(min_length=1, max_length=255)
    purpose: str
    expires_after: ExpiresAfterBody | None = None


class UploadCompleteBody(StrictBody):
    """`uploads.complete`."""

    part_ids: list[str] = Field(min_length=1)
    md5: str | None = None


class ResumeBody(StrictBody):
    """`fine_tuning.jobs.resume`; the SDK sends a body only with `extra_body`."""

    x_assay: OurJobBody = OurJobBody()


class NoBody(StrictBody):
    """Calls without a body."""


class RawBody(NamedTuple):
    """The body of a request, not parsed yet, or why it was not read."""

    data: bytes
    problem: ApiError | None = None

    @classmethod
    async def read(cls, request: "Request") -> Self:
        if request.headers.get("content-encoding", "identity") != "identity":
            text = "Compressed bodies are not supported. Send it uncompressed."
            return cls(b"", ApiError(text, code="unsupported_encoding"))
        data = b""
        async for block in request.stream():
            data += block
            if len(data) > MAX_JSON_BYTES:
                text = f"The body is longer than {MAX_JSON_BYTES:,} bytes."
                return cls(b"", ApiError(text, code="body_too_long"))
        return cls(data)

    def json(self) -> Any:
        """Return the JSON; an empty body is an empty object. Raises `ApiError`."""
        if self.problem is not None:
            raise self.problem
        if not self.data:
            return {}
        try:
            value = parse_json(self.data.decode(), object_pairs_hook=object_of_pairs)
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except TooDeepError as error:
            raise ApiError(f"The body's JSON has {error}.", code="invalid_json") from None
        except ValueError as error:  # also lone surrogates and NaN
            raise ApiError(f"The body is not JSON in UTF-8: {error}.", code="invalid_json") from None
        if holds_nul(self.data.decode()):
            raise ApiError("The body contains a NUL character, which is not allowed.", code="invalid_json")
        return value

    def parsed(self, body_class: type[BodyT]) -> BodyT:
        """Return the parsed body. Raises `ApiError`."""
        return parsed(body_class, self.json())


def parsed(body_class: type[BodyT], value: Any) -> BodyT:
    """Parse a body. Raises `ApiError` that names the first invalid parameter."""
    if not isinstance(value, dict):
        raise ApiError("The body must be a JSON object.", code="invalid_json")
    try:
        return body_class.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # Report unknown parameters first: a message without `content` may use `tool_calls`.
        unknown = [error_ for error_ in found if error_["type"] == "extra_forbidden"]
        first = next((error_ for error_ in unknown if error_["loc"][:-1] == found[0]["loc"][:-1]), found[0])
        param = ".".join(_named(first["loc"], value))
        if first["type"] == "extra_forbidden":
            raise ApiError(
                f"Unknown parameter: '{param}'. It is not honoured here, so it is rejected, not ignored.",
                param=param,
                code="unknown_parameter",
            ) from None
        if first["type"] == "missing":
            raise ApiError(
                f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
            ) from None
        message = first["msg"].removeprefix("Value error, ")
        raise ApiError(f"Invalid value of '{param}': {message}.", param=param, code="invalid_value") from None


def _named(location: Sequence[Any], value: Any) -> list[str]:
    """Convert a pydantic error location to parameter names, skipping union branches."""
    names: list[str] = []
    for number, part in enumerate(location, start=1):
        is_branch = str(part).startswith(("literal[", "function-")) or part in ("float", "int", "str")
        of_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if of_list or (isinstance(value, dict) and part in value):
            value = value[part]
        elif is_branch or number < len(location) or not isinstance(value, dict):
            continue
        names.append(str(part))
    return names


def request_sha256(project: str, route: str, value: Any) -> str:
    """Return the digest by which retries of a request are recognized."""
    return sha256_of_json([project, route, value])
