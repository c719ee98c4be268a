"""A first program to start from: small, valid, every section there and explained."""

import datetime
from importlib.resources import files
from pathlib import Path

from assay.base.errors import ConfigError


def new_program(out: Path, *, start: datetime.date) -> None:
    """Write the template to `out`, beginning on `start`; a file that exists is not touched."""
    template = (files("assay.planning") / "new_program.yaml").read_text(encoding="utf-8")
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(template.replace("START_DATE", start.isoformat()))
    except FileExistsError as error:
        raise ConfigError(f"{out} exists already. Choose another name, or remove it.") from error
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}.") from error
