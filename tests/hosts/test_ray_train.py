"""The loader in Ray Train: workers that die, and another number of them, lose no row."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from host_scripts import EXAMPLES, OWN, ROOT, Attempts, killed_and_resized, undisturbed_steps

pytestmark = pytest.mark.timeout(1800)
SETTINGS = {
    # Ray's processes start as soon as those of others on a busy machine, and none that is not needed.
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how often it looks for checkpoints
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class RayAttempts(Attempts):
    """Starts of a script on Ray's workers. It resumes by itself."""

    def command(self, ranks: int, killed_at: int) -> list[str]:
        """Return the command of one start."""
        command = [sys.executable, str(ROOT / "tests" / "ray_host.py"), str(killed_at), str(self.script)]
        return [*command, f"--workers={ranks}", f"--out={self.folder / 'out'}", f"--data={self.folder / 'data'}"]


@pytest.fixture
def ray_train(requires: Callable[[str, bool, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    requires("hosts", find_spec("ray") is not None, "ray is not installed (make test-hosts)")
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("ray_train")
def test_each_row_is_learned_once_an_epoch_in_the_undisturbed_order(tmp_path: Path) -> None:
    attempts = killed_and_resized(EXAMPLES / "ray_train.py", tmp_path, RayAttempts)
    assert attempts.faults() == {}
    trained = {step: sorted(rows) for step, rows in attempts.trained.items()}
    assert trained == undisturbed_steps(tmp_path / "data")


@pytest.mark.usefixtures("ray_train")
def test_ray_trains_own_loader_fails_the_same_test(tmp_path: Path) -> None:
    assert killed_and_resized(OWN / "ray_train.py", tmp_path, RayAttempts).faults() != {}
