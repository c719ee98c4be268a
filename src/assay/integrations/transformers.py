"""Records what the Trainer of transformers, or one of TRL's, does.

    trainer.add_callback(AssayCallback("digits/lr-1e-3"))

The name is the run's; without one it is `run_name` or the name of `output_dir`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

if TYPE_CHECKING:
    from assay.integrations.recording import RunRecorder

UNKNOWN = (
    "the exchange of gradients and the optimizer's step are part of compute",
    "time after train() returns, such as a last evaluation",
)


class AssayCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Records metrics, phases, attempts and checkpoints of a Trainer as a run in `$ASSAY_HOME`."""

    def __init__(self, name: str = "") -> None:
        """`name`: `PROJECT/RUN`, or the run's name alone."""
        self._name = name
        self._run: RunRecorder | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        from assay.integrations.recorded_run import RecordRequest, plain_name  # here: a callback imports only its host
        from assay.integrations.recording import RunRecorder

        name = self._name or plain_name(args.run_name or Path(args.output_dir).resolve().name)
        config = {**args.to_dict(), "model": _model_facts(kwargs.get("model"))}
        devices = args.world_size * max(1, args.n_gpu)
        request = RecordRequest(name, "transformers", config, devices, state.max_steps, args.process_index, UNKNOWN)
        self._run = RunRecorder(request, start_step=state.global_step)
        self._run.watch_rows(kwargs.get("train_dataloader"))
        if state.global_step:
            resumed_from = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._run.recover_checkpoint(resumed_from, state.global_step)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._run is not None:
            self._run.phase("data")

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._run is not None:
            self._run.phase("compute")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._run is not None:
            self._run.log(state.global_step)
            self._enter_next(control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._enter_next(control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if self._run is not None:
            self._run.log(state.global_step, logs)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._run is not None:
            self._run.phase("checkpoint" if control.should_save else "data")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._run is not None:
            self._run.checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}", state.global_step)
            self._run.phase("data")

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._run is not None:
            self._run.end()
            self._run = None

    def _enter_next(self, control: TrainerControl) -> None:
        """Enter what the Trainer does after a step; its own callback, which runs before, has decided that."""
        if self._run is not None:
            is_evaluated, is_saved = control.should_evaluate, control.should_save
            self._run.phase("evaluation" if is_evaluated else "checkpoint" if is_saved else "data")


def _model_facts(model: Any) -> dict[str, Any]:
    config = getattr(model, "config", None)
    return {
        "name": getattr(config, "_name_or_path", ""),
        "type": getattr(config, "model_type", type(model).__name__),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()) if model is not None else 0,
    }
