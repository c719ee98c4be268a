"""Records what a Trainer of Lightning does.

    Trainer(callbacks=[AssayCallback("digits/lr-1e-3"), ...])

The name is the run's; without one it is the name of `default_root_dir`.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:  # the same library under its older name
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from assay.integrations.recording import RunRecorder

UNKNOWN = (
    "the exchange of gradients and the optimizer's step are part of compute",
    "time after fit() returns, such as a test",
)


class AssayCallback(Callback):  # type: ignore[misc]  # Lightning is not installed where types are checked
    """Records metrics, phases, attempts and checkpoints of a Trainer as a run in `$ASSAY_HOME`."""

    def __init__(self, name: str = "") -> None:
        """`name`: `PROJECT/RUN`, or the run's name alone."""
        self._name = name
        self._run: RunRecorder | None = None
        self._logged_step = 0
        self._adopted: dict[str, int] = {}
        """Paths of checkpoints, with the time of the last change."""

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        from assay.integrations.recorded_run import RecordRequest, plain_name  # here: a callback imports only its host
        from assay.integrations.recording import RunRecorder

        name = self._name or plain_name(Path(trainer.default_root_dir).resolve().name)
        config = {**dict(pl_module.hparams), "trainer": _trainer_facts(trainer)}
        num_steps = trainer.max_steps if trainer.max_steps > 0 else _num_steps(trainer)
        request = RecordRequest(name, "lightning", config, trainer.world_size, num_steps, trainer.global_rank, UNKNOWN)
        self._run = RunRecorder(request, start_step=trainer.global_step)
        self._run.watch_rows(trainer.train_dataloader)
        self._logged_step = trainer.global_step
        self._adopted = {
            name: Path(name).stat().st_mtime_ns for name in _saved_checkpoints(trainer) if Path(name).exists()
        }
        self._run.phase("data")

    def on_train_batch_start(
        self, trainer: "Trainer", pl_module: "LightningModule", batch: Any, batch_idx: int
    ) -> None:
        if self._run is not None:
            self._adopt_new(trainer)
            self._run.phase("compute")

    def on_train_batch_end(
        self, trainer: "Trainer", pl_module: "LightningModule", outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._run is None:
            return
        step = trainer.global_step
        if step > self._logged_step:  # not at every batch if gradients are accumulated
            self._logged_step = step
            is_logged = step % trainer.log_every_n_steps == 0
            # Reading a metric waits for the device, so it is done as often as the loggers do.
            self._run.log(step, _metrics(trainer) if is_logged else None)
        self._run.phase("data")

    def on_validation_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if self._run is not None and not trainer.sanity_checking:
            self._run.phase("evaluation")

    def on_validation_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if self._run is not None and not trainer.sanity_checking:
            self._run.log(trainer.global_step, _metrics(trainer))
            self._run.phase("data")

    def on_save_checkpoint(self, trainer: "Trainer", pl_module: "LightningModule", checkpoint: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.phase("checkpoint")

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if self._run is not None:
            self._run.log(trainer.global_step, _metrics(trainer))

    def teardown(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        if self._run is not None:
            self._adopt_new(trainer)  # also what ModelCheckpoint saved at the end
            self._run.end(KeyboardInterrupt() if trainer.interrupted else None)
            self._run = None

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        if self._run is not None:
            self._run.end(exception)
            self._run = None

    def _adopt_new(self, trainer: "Trainer") -> None:
        """Adopt what checkpoint callbacks have saved since the last call; of several copies, the first."""
        files = [Path(name) for name in _saved_checkpoints(trainer)]
        changed = {str(file): file.stat().st_mtime_ns for file in files if file.exists()}
        new = [name for name, changed_ns in changed.items() if self._adopted.get(name) != changed_ns]
        if new and self._run is not None:
            self._run.checkpoint(new[0], trainer.global_step)
        self._adopted.update(changed)


def _saved_checkpoints(trainer: "Trainer") -> list[str]:
    paths = [
        path
        for callback in trainer.checkpoint_callbacks
        for path in (
            getattr(callback, "best_model_path", ""),  # the newest one, if no metric decides
            *getattr(callback, "best_k_models", ()),
            getattr(callback, "last_model_path", ""),
        )
    ]
    return list(dict.fromkeys(path for path in paths if path))


def _metrics(trainer: "Trainer") -> dict[str, Any]:
    metrics = {**trainer.callback_metrics}
    if "loss" not in metrics and "train_loss" in metrics:
        metrics["loss"] = metrics["train_loss"]
    return {
        name.replace("val_", "validation_", 1) if name.startswith("val_") else name: metrics[name] for name in metrics
    }


def _num_steps(trainer: "Trainer") -> int | None:
    planned = trainer.estimated_stepping_batches
    return int(planned) if planned not in (float("inf"), -1) else None


def _trainer_facts(trainer: "Trainer") -> dict[str, Any]:
    names = ("max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val", "precision", "num_nodes")
    return {name: getattr(trainer, name, None) for name in names} | {"strategy": type(trainer.strategy).__name__}
