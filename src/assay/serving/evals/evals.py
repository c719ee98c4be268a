"""Evals: item schema and testing criteria are immutable; name and metadata can be updated."""

from dataclasses import dataclass
from typing import Any

from assay.records.eval_run import EVAL_ENTRIES, EvalClaimed, EvalCreated, EvalDeleted, EvalEntry, EvalUpdated
from assay.serving.idempotency_keys import IdempotentRepository
from assay.serving.repository import ResourceState, resource_log


@dataclass(frozen=True)
class EvalState(ResourceState[EvalCreated]):
    """State of an eval, folded from its log."""

    updated: EvalUpdated | None = None

    @property
    def name(self) -> str:
        return (self.updated or self.created).name

    @property
    def metadata(self) -> dict[str, str] | None:
        return (self.updated or self.created).metadata

    def changes(self, entry: EvalEntry) -> dict[str, Any]:
        return {"updated": entry} if isinstance(entry, EvalUpdated) else {"is_deleted": True}


class EvalRepository(IdempotentRepository[EvalEntry, EvalState]):
    """Evals in an object store."""

    id_kind = "eval"
    log_kind = resource_log("eval's log", EVAL_ENTRIES, EvalState)
    title, param, id_field = "eval", "eval_id", "eval_id"
    claimed = EvalClaimed

    def update(
        self, eval_id: str, *, name: str | None, has_metadata: bool, metadata: dict[str, str] | None
    ) -> EvalState:
        """Update name and metadata. `has_metadata`: whether `metadata` was sent; None clears it."""

        def decide(now: EvalState) -> EvalEntry | None:
            updated = (name or now.name, metadata if has_metadata else now.metadata)
            if updated == (now.name, now.metadata):
                return None
            return EvalUpdated(at_s=self._clock.now_s(), name=updated[0], metadata=updated[1])

        return self.change(eval_id, decide)

    def delete(self, eval_id: str) -> None:
        """Delete the eval; workers cancel its runs."""
        deleted = EvalDeleted(at_s=self._clock.now_s())
        self.unlist(self.change(eval_id, lambda now: None if now.is_deleted else deleted))
