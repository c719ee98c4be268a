"""The loop of `recipes/tinker` runs unchanged against the server; what it asks for is executed by a stand-in."""

import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from served import app_in
from sessions import AnsweringWorker, on_socket, tinker_server

LOOP = Path(__file__).parents[2] / "recipes" / "tinker" / "digits.py"


def test_the_loop_imitates_then_learns_from_rewards_and_saves(requires, tmp_path: Path) -> None:
    requires("sdks", find_spec("tinker") is not None, "the tinker SDK is not installed")
    app = app_in(tmp_path, method="supervised")
    worker, steps = AnsweringWorker(app.sessions), ["--imitation-steps", "2", "--policy-steps", "2"]
    with on_socket(tinker_server(app)) as url, worker.at_work():
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", LOOP, url, "tiny", *steps], capture_output=True, text=True, check=False
        )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "imitation 0",
        "imitation 1",
        "policy 0",
        "policy 1",
        "tinker",
    ]
    assert all(line.endswith("reward 0.0000") for line in lines[2:4]), "the stand-in repeats the prompt"
    kinds = Counter(kind for _, _, kind in worker.executed)
    assert (kinds["forward_backward"], kinds["optim_step"], kinds["sample"], kinds["save_weights"]) == (4, 4, 32, 1)
