"""Service accounts of a project, which own API keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from assay.records.service_account import (
    SERVICE_ACCOUNT_ENTRIES,
    ServiceAccountClaimed,
    ServiceAccountCreated,
    ServiceAccountDeleted,
    ServiceAccountEntry,
)
from assay.serving.idempotency_keys import IdempotentRepository
from assay.serving.repository import ResourceState, resource_log


@dataclass(frozen=True)
class AccountState(ResourceState[ServiceAccountCreated]):
    """State of a service account, folded from its log."""

    deleted: ServiceAccountDeleted | None = None

    def changes(self, entry: ServiceAccountEntry) -> dict[str, Any]:
        return {"deleted": self.deleted or entry, "is_deleted": True}


class AccountRepository(IdempotentRepository[ServiceAccountEntry, AccountState]):
    """Service accounts in an object store."""

    id_kind = "svcacct"
    log_kind = resource_log("service account's log", SERVICE_ACCOUNT_ENTRIES, AccountState)
    title, param, id_field = "service account", "service_account_id", "account_id"
    claimed = ServiceAccountClaimed

    def all(self) -> Iterator[AccountState]:
        """Return accounts from oldest to newest, deleted ones included."""
        return (state for _, state in self.states(self.ids()))

    def delete(self, account_id: str, *, by: str) -> None:
        deleted = ServiceAccountDeleted(at_s=self._clock.now_s(), by=by)
        self.change(account_id, lambda now: None if now.deleted else deleted)
