"""Service accounts: in whose name keys of a project are made."""

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
from assay.serving.job_repository import Shelf
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore


@dataclass(frozen=True)
class AccountState:
    """A service account as its entries say."""

    created: ServiceAccountCreated
    deleted: ServiceAccountDeleted | None = None
    claim: int = 0
    """The number of the last repeat of its request that was answered with it."""


def fold_account(state: AccountState | None, entry: ServiceAccountEntry) -> AccountState:
    """The state behind one more entry."""
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


class AccountShelf:
    """All service accounts of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.shelf: Shelf[ServiceAccountEntry, AccountState] = Shelf(
            store, "svcacct", ACCOUNT_LOG, is_worked_at=False
        )
        self._clock = clock

    def put(self, created: ServiceAccountCreated) -> AccountState:
        """Make an account; made twice it is made once."""
        return self.shelf.begin(created.account_id, created)

    def all(self) -> Iterator[AccountState]:
        """Every account that was ever made, the oldest first."""
        return (state for _, state in self.shelf.states(self.shelf.ids()))

    def find(self, account_id: str, project: str) -> AccountState | None:
        """The account, if it is there and the project's."""
        state = self.shelf.state(account_id)
        is_there = state is not None and state.created.project == project and state.deleted is None
        return state if is_there else None

    def delete(self, account_id: str, *, by: str) -> None:
        """It gets no keys any more."""
        deleted = ServiceAccountDeleted(at_s=self._clock.now_s(), by=by)
        self.shelf.log(account_id).append(lambda now: None if now is None or now.deleted else deleted)
