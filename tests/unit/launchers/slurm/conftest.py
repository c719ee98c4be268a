from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def programs(tmp_path: Path) -> Callable[..., None]:
    """Write programs of a cluster into the test's folder: `programs(srun="exit 1")`."""

    def write(**bodies: str) -> None:
        for name, body in bodies.items():
            (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
            (tmp_path / name).chmod(0o755)

    return write
