"""Log entries of a project of the API: an isolated set of resources with limits that may be
spent."""

from typing import Literal

from pydantic import PositiveFloat

from assay.base.names import Name
from assay.records.log_entry import classes_by_type
from assay.records.record import Record


class ProjectCreated(Record):
    """From now on keys can be made for it."""

    type: Literal["created"] = "created"
    project: Name
    """Its id; everything that is its own says so."""
    name: str
    """For people."""
    at_s: float
    """Seconds since the Unix epoch, as in all entries."""
    by: str
    """Actor: id of a key, or a command-line user."""


class ProjectRenamed(Record):
    """People call it otherwise."""

    type: Literal["renamed"] = "renamed"
    name: str
    at_s: float
    by: str


class SpendLimitSet(Record):
    """Budget of device time of its jobs per calendar month (UTC)."""

    type: Literal["spend_limit"] = "spend_limit"
    device_hours: PositiveFloat | None
    """None is unlimited."""
    at_s: float
    by: str


class ModelPermissionsSet(Record):
    """Which models it may ask and train: by their names, or by that of what they were trained from."""

    type: Literal["models"] = "models"
    mode: Literal["allow_list", "deny_list"] | None
    """These alone, or all but these; None for all."""
    model_ids: tuple[str, ...]
    at_s: float
    by: str


class ProjectArchived(Record):
    """Nobody asks in its name any more; what it has stays."""

    type: Literal["archived"] = "archived"
    at_s: float
    by: str


ProjectEntry = ProjectCreated | ProjectRenamed | SpendLimitSet | ModelPermissionsSet | ProjectArchived

PROJECT_ENTRIES = classes_by_type(ProjectEntry)
