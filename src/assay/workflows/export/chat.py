"""A conversation with a language model: that of a run's commit or of a checkpoint folder."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.inference.protocol import Completion, Message, SamplerError, SamplingParams
from assay.records.exported_model import EXPORT_FILE, ExportedModel
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.methods.registry import method_of
from assay.training.recipe import recipe_of
from assay.workflows.evaluation.evaluate import language_model, local_model
from assay.workflows.export.export import NAME_IT
from assay.workflows.run import find_commit, load_run

if TYPE_CHECKING:
    from assay.inference.local.local_model import LocalModel


class Conversation:
    """The messages so far, and the model.

    Without a chat template there is no conversation: the model continues each text by itself.
    """

    def __init__(self, model: "LocalModel", sampling: SamplingParams, *, system: str | None = None) -> None:
        if system is not None and not model.has_template:
            raise ConfigError("--system: the model has no chat template for it. Leave the option out.")
        self._model, self._sampling = model, sampling
        self._system = [] if system is None else [Message(role="system", content=system)]
        self._messages: list[Message] = []

    def begin_again(self) -> None:
        self._messages = []

    def reply(self, text: str, on_text: Callable[[str], None] = lambda piece: None) -> Completion:
        """Generate the reply and add it to the conversation; `on_text` gets its pieces while it is sampled.
        Raises `SamplerError`."""
        messages = [*self._messages, Message(role="user", content=text)]
        (completion,) = self._model.generate(
            [[*self._system, *messages]], self._sampling, lambda piece: on_text(piece.text)
        )
        if isinstance(completion, SamplerError):
            raise completion
        if self._model.has_template:
            self._messages = [*messages, Message(role="assistant", content=completion.text)]
        return completion


def run_to_talk_with(home: Home, run_id: str, *, step: int | None, tokenizer: Path | None) -> "LocalModel":
    """Return the model of a run's commit, by default the last one."""
    from assay.evals.commit_model import load_committed
    from assay.training.trainer.method import ExportableMethod

    run = load_run(home, run_id)
    config, log = recipe_of(run).method, CommitLog(open_store(run.store_url))
    method = method_of(config)
    if not isinstance(method, ExportableMethod) or method.form != "language_model":
        raise ConfigError(
            f"run '{run_id}' is of method '{config.type}', whose model generates no text. Chat with a run of SFT, DPO "
            f"or GRPO; 'assay eval predict {run_id} FILE' predicts for rows."
        )
    commit = find_commit(run, log, step)
    model = load_committed(run, commit, log.store)
    return language_model(run, model, commit, tokenizer=tokenizer, hint=NAME_IT, chat_day=_today())


def folder_to_talk_with(folder: str) -> "LocalModel":
    """Return the model in a folder written by `save_pretrained` or `assay runs export`."""
    exported = Path(folder) / EXPORT_FILE
    if exported.is_file():
        record = ExportedModel.from_json(exported.read_bytes(), source=exported)
        if record.form != "language_model":
            raise ConfigError(f"{folder}: holds a {record.form.replace('_', ' ')}, which generates no text.")
    return local_model(folder, chat_day=_today())[0]


def _today() -> date:
    return datetime.fromtimestamp(SystemClock().now_s(), UTC).date()
