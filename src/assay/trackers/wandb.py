"""The Weights & Biases sink, offline: it writes a folder that `wandb sync` can upload."""

from collections.abc import MutableMapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from assay.records.run import Run
from assay.trackers.sink import Point, needs

STEP = "step"


class WandbSink:
    """Writes to the project with the recipe's name; nothing leaves the machine."""

    def __init__(self, folder: str, run: Run, memory: MutableMapping[str, Any]) -> None:  # noqa: ARG002
        with needs("wandb", "wandb"):
            import wandb
        self._teardown = wandb.teardown
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            mode="offline",
            dir=folder,
            project=str(run.recipe.get("name", "assay")),
            name=run.run_id,
            id=run.recipe_sha256[:8] + "-" + run.run_id[-40:],
            resume="allow",
            reinit="create_new",
            config=run.recipe,
            settings=wandb.Settings(x_disable_stats=True, console="off", silent=True),
        )
        # Rolled-back steps are logged again, but W&B's own step must increase.
        self._run.define_metric("*", step_metric=STEP)

    def began(self, step: int, at_s: float) -> None:
        """See `Sink`; W&B keeps rolled-back points under the same steps."""

    def write(self, points: Sequence[Point]) -> None:
        for step, of_step in groupby(points, key=lambda point: point.step):
            self._run.log({STEP: step, **{point.name: point.value for point in of_step}})

    def flush(self) -> None:
        """See `Sink`; W&B's own process writes."""

    def close(self, *, failed: bool | None) -> None:
        """See `Sink`; the data is on disk only after W&B's process has ended."""
        self._run.finish(exit_code=int(failed or False))
        self._teardown()
