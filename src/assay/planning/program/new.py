"""Writes a first program to start from: small, valid, with every section explained."""

import datetime
from importlib.resources import files
from pathlib import Path

from assay.base.errors import ConfigError


def new_program(out: Path, *, start: datetime.date) -> None:
    """Write the template to `out`, beginning on `start`."""
    template = (files("assay.planning") / "new_program.yaml").read_text(encoding="utf-8")
    try:
        out.write_text(template.replace("START_DATE", start.isoformat()), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}.") from error
