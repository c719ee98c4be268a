"""Requests that nobody thought of: schemathesis makes them of `openapi.json`, one by one and in sequences.

A real server answers them. None may be a 5xx, and each answer is one that the document declares.
"""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compatibility.environment import python_with
from integration.test_serving import Here, create

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    found = Here(tmp_path)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("phases", "num_examples"),
    [("fuzzing,stateful", 5), pytest.param("coverage,fuzzing,stateful", 40, marks=pytest.mark.soak)],
)
def test_no_request_is_a_server_error_and_no_answer_is_undeclared(
    phases: str, num_examples: int, here: Here, requires: Callable[[str, bool, str], None]
) -> None:
    python = python_with("schemathesis", requires)
    _, sdk = here.serve()
    create(sdk, n_epochs=1)  # something is there to be found
    request = [python, "-m", "schemathesis.cli", "run", f"{sdk.base_url}openapi.json"]
    request += ["--checks", ",".join(CHECKS), "--phases", phases, "--seed", "1"]
    request += ["--max-examples", str(num_examples), "--header", "Authorization: Bearer any"]
    done = subprocess.run(request, capture_output=True, text=True, cwd=here.folder)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
