"""A run as its record says it, before anything was written."""

from pathlib import Path

import pytest

from assay.records.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(
        run_id="r",
        created_s=0.0,
        recipe={},
        recipe_sha256="",
        dataset_fingerprint="",
        code_version="",
        run_dir=str(tmp_path / "r"),
        store_url=str(tmp_path / "store"),
    )
