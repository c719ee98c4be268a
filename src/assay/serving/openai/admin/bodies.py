"""Request bodies and query parameters of the admin API."""

from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import Request
from pydantic import Field

from assay.serving.api_error import ApiError
from assay.serving.openai.bodies import StrictBody
from assay.serving.openai.openapi import declared_query

LONGEST_LIFE_S = 10 * 365 * 86_400
_Title = Annotated[str, Field(min_length=1, max_length=255)]
_LifeSeconds = Annotated[int, Field(gt=0, le=LONGEST_LIFE_S)]


class ProjectBody(StrictBody):
    """`projects.create`, `projects.update`."""

    name: _Title


class AccountBody(StrictBody):
    """`service_accounts.create`."""

    name: _Title
    create_service_account_only: bool | None = None
    expires_in_seconds: _LifeSeconds | None = None


class AdminKeyBody(StrictBody):
    """`admin_api_keys.create`."""

    name: _Title
    expires_in_seconds: _LifeSeconds | None = None


class SpendLimitBody(StrictBody):
    """`spend_limit.update`. Amounts are hundredths of a device-hour."""

    currency: Literal["device_hours"]
    interval: Literal["month"]
    threshold_amount: int = Field(gt=0, le=10**12)


class ModelPermissionsBody(StrictBody):
    """`model_permissions.update`."""

    mode: Literal["allow_list", "deny_list"]
    model_ids: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(max_length=1000)


def listed_query(request: Request, many: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the query parameters; those in `many` are lists, without their brackets. Raises `ApiError` for
    undeclared ones."""
    declared, found = declared_query(request), dict[str, list[str]]()
    for key, value in request.query_params.multi_items():
        name = key.removesuffix("[]")
        if name not in declared or (name not in many and name in found):
            raise ApiError(
                f"Unknown parameter: '{key:.80}', or it is given twice. Unsupported parameters are "
                "rejected, not ignored.",
                param=key,
                code="unknown_parameter",
            )
        found.setdefault(name, []).append(value)
    return found


def whole_number(query: Mapping[str, list[str]], name: str, default: int | None, *, most: int) -> int:
    """Return an integer parameter from 0 to `most`; required if there is no default."""
    text = query.get(name, [None])[0]
    if text is None:
        if default is None:
            raise ApiError(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= most):
        raise ApiError(
            f"{name} must be an integer from 0 to {most:,}, not {text!r:.40}.", param=name, code="invalid_value"
        )
    return int(text)
