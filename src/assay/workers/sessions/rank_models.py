"""The models of one rank: those that sessions train, and on rank 0 those that only sample.

Passes and updates are collectives, so all ranks call the same methods in the same order (`ModelRanks`).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, TypeVar

from assay.distributed.ranks import Ranks
from assay.serving.sessions.request_log import TargetId
from assay.serving.sessions.sessions import SessionRepository
from assay.training.sessions.bases import FrozenBases
from assay.training.sessions.trainer import SessionTrainer
from assay.workers.sessions.base import SessionBase
from assay.workers.sessions.sampler import SamplerExecutor

MICRO_BATCH_TOKENS = 16_384
"""Padded tokens of a micro-batch if the recipe has no limit: a request may have any number of datums."""
Returned = TypeVar("Returned")


class RankModels:
    """All models of this process."""

    def __init__(self, sessions: SessionRepository, ranks: Ranks) -> None:
        self._first_ranks = cache(ranks.first)
        self._bases = FrozenBases(ranks.device)
        self._samplers = SamplerExecutor(sessions, self._bases)
        self._trainers: dict[TargetId, SessionTrainer | None] = {}
        """None: the model has fewer lanes than there are ranks, and this one has none."""

    def create(
        self, model: TargetId, base: SessionBase, state: bytes | None = None, *, with_moments: bool = True
    ) -> None:
        """Begin a model with its initial weights, or with a stored state. If that fails, it stays as it was."""
        ranks = self._first_ranks(base.recipe.loader.lanes)
        trainer = new_trainer(base, ranks, self._bases) if ranks.rank < ranks.world_size else None
        if trainer is not None and state is not None:
            trainer.restore(state, with_moments=with_moments)
        self._trainers[model] = trainer

    def trainer(self, model: TargetId) -> SessionTrainer | None:
        """Return the trainer of a model, or None if there is none on this rank."""
        return self._trainers.get(model)

    def train(self, model: TargetId, method: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned | None:
        """Return what a method of a model's trainer returns; None if this rank has no lane of it."""
        trainer = self._trainers[model]
        return None if trainer is None else method(trainer, *args, **kwargs)

    def sample(self, session_id: str) -> bool:
        """Execute some of a session's samples; see `SamplerExecutor`."""
        return self._samplers.execute_waiting(session_id)

    def free(self, session_id: str) -> None:
        """Free the models that a session trains."""
        for model in [*self._trainers]:
            if model.session_id == session_id:
                del self._trainers[model]


class ModelRanks(Protocol):
    """The ranks that hold the models: processes of a worker, or this one."""

    def call(self, method: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned:
        """Call a method of each rank's models; return what it returns on rank 0, or raise what it raises there."""
        ...

    def call_first(self, method: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned:
        """Call a method, which must not be a collective, on rank 0 alone."""
        ...

    def start(self) -> None:
        """Start ranks in place of lost ones."""
        ...


class OwnModels:
    """The only rank, in this process."""

    def __init__(self, sessions: SessionRepository, ranks: Ranks) -> None:
        self.models = RankModels(sessions, ranks)

    def call(self, method: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned:
        return method(self.models, *args, **kwargs)

    def call_first(self, method: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned:
        return method(self.models, *args, **kwargs)

    def start(self) -> None:
        """Do nothing: it is not lost."""


def new_trainer(base: SessionBase, ranks: Ranks, bases: FrozenBases) -> SessionTrainer:
    """Return a trainer of a model with initial weights."""
    loader, trainer = base.recipe.loader, base.recipe.trainer
    return SessionTrainer(
        base.config,
        ranks,
        seed=base.seed,
        num_lanes=loader.lanes,
        max_micro_batch_tokens=loader.for_evaluation().max_micro_batch_tokens or MICRO_BATCH_TOKENS,
        precision=trainer.precision,
        num_threads=trainer.threads_per_rank,
        base=None if base.config.model.lora is None else bases.network(base.config, seed=base.recipe.seed),
    )
