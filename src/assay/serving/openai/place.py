"""What every route is given: where things lie, and who asks."""

from collections.abc import Mapping
from typing import NamedTuple

from fastapi import Request

from assay.base.clock import Clock
from assay.serving.base_models import BaseModelFile
from assay.serving.files import FileShelf
from assay.serving.jobs import JobShelf
from assay.serving.refusal import RefusedError

DEFAULT_PROJECT = "default"
"""The project of whoever asks without a key."""


class Place(NamedTuple):
    """One server's things."""

    files: FileShelf
    jobs: JobShelf
    models: Mapping[str, BaseModelFile]
    clock: Clock


def project_of(request: Request) -> str:
    """The project in which everything that is asked for is looked up."""
    return str(request.scope.get("assay.project", DEFAULT_PROJECT))


def query_of(request: Request, *names: str) -> Mapping[str, str]:
    """What stands behind the path's question mark; anything but `names` is refused."""
    for name in request.query_params:
        if name not in names and not (name.startswith("metadata[") and "metadata" in names):
            raise RefusedError(
                f"Unknown parameter: '{name:.80}'. It is not honoured, so it is refused rather than ignored.",
                param=name,
                code="unknown_parameter",
            )
    return dict(request.query_params)
