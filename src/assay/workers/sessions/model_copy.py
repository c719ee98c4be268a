"""A model of a session in this process, apart from the session: its requests are executed again in a copy of its log.

    newest stored state before a request --> requests after it, in a temporary store --> results and weights

The session itself is only read, so this works while a worker executes it.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.distributed.ranks import Ranks
from assay.records.session import SessionModel
from assay.serving.sessions.request_log import Request, Result, TargetId
from assay.serving.sessions.sessions import SessionRepository
from assay.serving.tinker.bodies import read_request
from assay.store.objects import open_store
from assay.training.sessions.trainer import SessionTrainer
from assay.workers.sessions.model import SAVES, ModelExecutor, SessionTools
from assay.workers.sessions.rank_models import OwnModels
from assay.workers.sessions.weights import ModelStates, saved_weights


class ModelCopy:
    """Executes requests of a model again."""

    def __init__(self, sessions: SessionRepository, target: TargetId, ranks: Ranks, folder: Path, before: int) -> None:
        self._sessions = sessions
        self._target = target
        self._store = open_store(str(folder))
        self._copies = SessionRepository(self._store, SystemClock())
        self._copy_session(target.session_id)
        state = ModelStates(sessions.store, target).newest(lambda text: None, before=before)
        if state is not None:
            ModelStates(self._store, target).put("commits", state.next_seq_id, state)
        session = self._copies.state(target.session_id)
        assert session is not None, "it was copied"
        self._models = OwnModels(self._copies, ranks)
        tools = SessionTools(
            self._store, self._copies, self._models, SystemClock(), math.inf, lambda text: None, Counter()
        )
        self._executor = ModelExecutor(tools, target, session.models[target.number])

    @property
    def next_seq_id(self) -> int:
        """Number of the next request."""
        return self._executor.next_seq_id

    @property
    def trainer(self) -> SessionTrainer:
        """The model with its optimizer. Raises `ConfigError` if its creation failed."""
        if (trainer := self._models.models.trainer(self._target)) is None:
            raise ConfigError(f"{self._target} was not created: see the result of its first request.")
        return trainer

    def execute_next(self, *, with_errors: bool = False) -> tuple[Request, Result, Result]:
        """Execute the next request; return it with its stored result and the new one.

        A request that failed had no effect, so it is passed over without `with_errors`.
        """
        log, copy, seq_id = self._sessions.requests(self._target), self._copies.requests(self._target), self.next_seq_id
        request, known = log.request(seq_id), log.result(seq_id)
        if request is None or known is None:
            raise ConfigError(f"{self._target}: request {seq_id} is missing or was not executed.")
        copy.append(seq_id, request.kind, request.content_type, request.body, now_s=request.at_s)
        if request.kind in SAVES or (known.is_error and not with_errors):
            copy.put_result(seq_id, known)
        elif request.kind == "load_weights":
            self._copy_weights(read_request(request).path, request)
        self._executor.execute_next()
        found = copy.result(seq_id)
        assert found is not None, "it was executed"
        return request, known, found

    def _copy_session(self, session_id: str) -> None:
        for item in self._sessions.store.list(f"session/{session_id}/log/"):
            self._store.put(item.key, self._sessions.store.get(item.key))

    def _copy_weights(self, name: str, request: Request) -> None:
        saved = saved_weights(self._sessions, name)
        if saved is None or saved.checkpoint.at_s > request.at_s:
            raise ConfigError(
                f"{self._target}: request {request.seq_id} loaded {name}, which was deleted or saved again since. "
                "Choose a step behind a stored state."
            )
        model = saved.path.model
        self._copy_session(model.session_id)
        ModelStates(self._store, model).put(saved.path.checkpoint_type, saved.checkpoint.seq_id, saved.state)


def named_model(sessions: SessionRepository, name: str) -> tuple[TargetId, SessionModel]:
    """Return a model by `SESSION:train:NUMBER`, or by its session if it has one. Raises `ConfigError`."""
    session_id = name.partition(":")[0]
    session = sessions.state(session_id)
    if session is None:
        raise ConfigError(f"No session {session_id} in {sessions.store.url}.")
    known = {str(TargetId(session_id, "train", number)): number for number in session.models}
    found = [number for model, number in known.items() if name in (model, session_id)]
    if len(found) != 1:
        raise ConfigError(f"{name} names no model, or several. The session has {', '.join(known) or 'none'}.")
    return TargetId(session_id, "train", found[0]), session.models[found[0]]


@contextmanager
def copied_model(sessions: SessionRepository, target: TargetId, *, before: int) -> Iterator[ModelCopy]:
    """Yield a copy of a model with its newest stored state that does not include request `before`."""
    with TemporaryDirectory() as folder:
        ranks = Ranks.join(rank=0, world_size=1, rendezvous=(Path(folder) / "rendezvous").as_uri(), num_threads=1)
        try:
            yield ModelCopy(sessions, target, ranks, Path(folder) / "copy", before)
        finally:
            ranks.leave()
