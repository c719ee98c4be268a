"""Service accounts of a project, which own API keys."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from assay.base.clock import Clock
from assay.records.service_account import (
    SERVICE_ACCOUNT_ENTRIES,
    ServiceAccountClaimed,
    ServiceAccountCreated,
    ServiceAccountDeleted,
    ServiceAccountEntry,
)
from assay.serving.log_repository import LogRepository
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore


@dataclass(frozen=True)
class AccountState:
    """State of a service account, folded from its log."""

    created: ServiceAccountCreated
    deleted: ServiceAccountDeleted | None = None
    claim: int = 0
    """Highest retry count of its create request that was answered with this account."""


def fold_account(state: AccountState | None, entry: ServiceAccountEntry) -> AccountState:
    """Return the state after one more log entry."""
    if isinstance(entry, ServiceAccountCreated):
        assert state is None, "an account is created once"
        return AccountState(entry)
    assert state is not None
    if isinstance(entry, ServiceAccountClaimed):
        return replace(state, claim=max(state.claim, entry.retry_count))
    return replace(state, deleted=state.deleted or entry)


ACCOUNT_LOG: LogKind[ServiceAccountEntry, AccountState] = LogKind(
    "service account's log", SERVICE_ACCOUNT_ENTRIES, fold_account
)


class AccountRepository:
    """Service accounts in an object store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.logs: LogRepository[ServiceAccountEntry, AccountState] = LogRepository(
            store, "svcacct", ACCOUNT_LOG, tracks_open=False
        )
        self._clock = clock

    def put(self, created: ServiceAccountCreated) -> AccountState:
        """Create an account; idempotent for the same id."""
        return self.logs.begin(created.account_id, created)

    def all(self) -> Iterator[AccountState]:
        """Return accounts from oldest to newest, deleted ones included."""
        return (state for _, state in self.logs.states(self.logs.ids()))

    def find(self, account_id: str, project: str) -> AccountState | None:
        """Return the account if it belongs to `project` and is not deleted."""
        state = self.logs.state(account_id)
        is_active = state is not None and state.created.project == project and state.deleted is None
        return state if is_active else None

    def delete(self, account_id: str, *, by: str) -> None:
        deleted = ServiceAccountDeleted(at_s=self._clock.now_s(), by=by)
        self.logs.log(account_id).append(lambda now: None if now is None or now.deleted else deleted)
