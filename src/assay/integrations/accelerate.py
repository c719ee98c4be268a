"""Records what a loop that uses Accelerate does, as a tracker of its own.

    tracker = AssayTracker("digits/lr-1e-3")
    accelerator = Accelerator(log_with=tracker)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers("digits", config)
    tracker.watch(accelerator)

Metrics are what `accelerator.log` gets. `watch` adds phases and steps, by hooks of torch on what was prepared, and the
folders that `save_state` and `load_state` use.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.tracking import GeneralTracker

if TYPE_CHECKING:
    from accelerate import Accelerator

    from assay.integrations.recording import RunRecorder

UNKNOWN = ("the exchange of gradients and the optimizer's step are part of compute",)


class AssayTracker(GeneralTracker):  # type: ignore[misc]  # Accelerate has no types
    """Records metrics, phases, attempts and checkpoints as a run in `$ASSAY_HOME`."""

    name = "assay"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str, *, num_steps: int | None = None) -> None:
        """`run_name`: `PROJECT/RUN`, or the run's name alone. `num_steps`: optimizer steps that are planned."""
        super().__init__(_blank=True)
        self._name = run_name
        self._num_steps = num_steps
        self._run: RunRecorder | None = None
        self._saved: Path | None = None
        self._hooks: list[Any] = []

    @property
    def tracker(self) -> "RunRecorder | None":
        """The record of the run, for what Accelerate does not pass on, such as `resumed(step)`."""
        return self._run

    def start(self) -> None:
        """Do nothing: the record begins with the configuration."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Begin the record."""
        from accelerate.state import PartialState

        # Here: importing a tracker imports only its host.
        from assay.integrations.recorded_run import RecordRequest
        from assay.integrations.recording import RunRecorder

        if self._run is None:
            state = PartialState()
            size, rank = state.num_processes, state.process_index
            request = RecordRequest(self._name, "accelerate", values, size, self._num_steps, rank, UNKNOWN)
            self._run = RunRecorder(request)

    def watch(self, accelerator: "Accelerator") -> None:
        """Record phases, steps and checkpoints of what was prepared, and rows of a `RowLoader` that was registered."""
        if self._run is None:  # no init_trackers yet, or without a configuration
            self.store_init_configuration({})
        assert self._run is not None
        optimizers = [prepared.optimizer for prepared in accelerator._optimizers]
        for index, model in enumerate(accelerator._models):
            self._run.watch(model, optimizers[0] if optimizers and index == 0 else None)
            # The first forward pass after a save shows that it is over.
            self._hooks.append(model.register_forward_pre_hook(lambda *_: self._adopt_saved()))
        for loader in accelerator._custom_objects:
            self._run.watch_rows(loader)
        self._hooks.append(accelerator.register_save_state_pre_hook(self._on_save))
        self._hooks.append(accelerator.register_load_state_pre_hook(self._on_load))

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Record metrics."""
        if self._run is not None:
            self._run.log(self._run.step if step is None else step, values)

    def finish(self) -> None:
        """End the record: the training succeeded."""
        if self._run is not None:
            self._adopt_saved()
            self._run.end()
            self._run = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _on_save(self, models: Any, weights: Any, output_dir: str) -> None:
        self._adopt_saved()
        if self._run is not None:
            self._saved = Path(output_dir)
            self._run.phase("checkpoint")

    def _on_load(self, models: Any, input_dir: str) -> None:
        if self._run is not None:
            self._run.resumed(input_dir)

    def _adopt_saved(self) -> None:
        if self._saved is not None and self._run is not None:
            saved, self._saved = self._saved, None
            self._run.checkpoint(saved)
