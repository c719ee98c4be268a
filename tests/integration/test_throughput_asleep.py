"""A forecast held to real runs whose lanes sleep: what others do on this machine hardly changes what they take.

The method is that of `row_length/`, laid into a copy of the source with a sleep before each loss; all else is
real: supervisors, ranks, exchanges, commits.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
METHODS = "assay/training/methods"
CLASSIFIER = '    Entry("classify", config="ClassifyConfig", method="ClassifyMethod"),\n'
ROW_LENGTH = '    Entry("row_length", config="RowLengthConfig", method="RowLengthMethod"),\n'
LANE_S = 0.5
LOSS = '        """The rows\' squared errors."""\n'
SLEEP = f"        time.sleep({LANE_S} * math.exp(0.1 * float(torch.randn(()))))\n"
SHARE = 0.25
"""Within which a step is, where processes wait for processors; alone it is within a twentieth."""

Assay = Callable[..., Any]


@pytest.fixture
def asleep(tmp_path: Path) -> Assay:
    """Runs a command of the copy; what it prints as JSON."""
    source = tmp_path / "src"
    shutil.copytree(SRC, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(HERE / "row_length", source / METHODS / "row_length")
    registry, method = source / METHODS / "registry.py", source / METHODS / "row_length/method.py"
    registry.write_text(registry.read_text().replace(CLASSIFIER, CLASSIFIER + ROW_LENGTH))
    assert method.read_text().count(LOSS) == 1
    method.write_text("import math\nimport time\n" + method.read_text().replace(LOSS, LOSS + SLEEP))
    environment = {**os.environ, "PYTHONPATH": str(source), "ASSAY_HOME": str(tmp_path / "home")}

    def run(*arguments: object) -> Any:
        command = [sys.executable, "-m", "assay", *map(str, arguments), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    return run


@pytest.mark.soak  # its times are those of a machine that does nothing else
@pytest.mark.timeout(1800)
def test_steps_of_more_workers_take_what_one_and_two_forecast(
    asleep: Assay, tiny_dataset: Path, tmp_path: Path
) -> None:
    tree = {
        "name": "asleep",
        "data": {"dataset": str(tiny_dataset), "split": {"type": "hash", "validation_fraction": 0.3}},
        "loader": {"lanes": 8, "global_batch_size": 32, "window_rows": 16, "threads": 1},
        "method": {"type": "row_length", "vocab_size": 300, "width": 800},
        "trainer": {"max_steps": 12, "commit_every": 50, "spot_check_every": None},
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tree))
    forecast = asleep("throughput", recipe, "--workers", "1,2,3,4", "--measure", "8")
    sizes = {size["world_size"]: size for size in forecast["sizes"]}
    assert sizes[1]["step_s"]["value"] == pytest.approx(8 * LANE_S, rel=SHARE)
    # Three workers have 3, 3 and 2 lanes.
    assert sizes[3]["terms"]["uneven"] == pytest.approx(LANE_S / 3, rel=SHARE)
    assert sizes[4]["terms"]["slowest"] > 0
    for workers in (3, 4):
        asleep("train", recipe, "--workers", workers, "--run-id", f"with-{workers}")
        check = asleep("throughput", "--against", f"with-{workers}")
        print(workers, json.dumps(check))
        assert check["step_s"] == sizes[workers]["step_s"]
        assert check["measured_step_s"] == pytest.approx(check["step_s"]["value"], rel=SHARE)
        terms = {term["phase"]: term for term in check["terms"]}
        assert terms["compute"]["measured_s"] == pytest.approx(terms["compute"]["forecast_s"], rel=SHARE)
