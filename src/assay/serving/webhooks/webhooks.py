"""Webhooks of projects: where they are told of which events, and with which secret that is signed."""

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from assay.base.clock import Clock
from assay.records.webhook import (
    WEBHOOK_ENTRIES,
    WebhookClaimed,
    WebhookCreated,
    WebhookDeleted,
    WebhookEntry,
    WebhookSecretRotated,
    WebhookUpdated,
)
from assay.serving.job_repository import Shelf
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore

EVENT_TYPES = (
    "fine_tuning.job.succeeded",
    "fine_tuning.job.failed",
    "fine_tuning.job.cancelled",
    "eval.run.succeeded",
    "eval.run.failed",
    "eval.run.canceled",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
)
"""All events that anybody is told of."""
OLD_SECRET_S = 86_400.0
_SECRET_BYTES = 32


@dataclass(frozen=True)
class WebhookState:
    """A webhook as its entries say."""

    created: WebhookCreated
    name: str
    url: str
    event_types: tuple[str, ...]
    secret: str
    updated_s: float
    old_secret: str | None = None
    old_until_s: float = 0.0
    is_deleted: bool = False
    claim: int = 0
    """The number of the last repeat of its request that was answered with it."""

    def secrets_at(self, now_s: float) -> list[str]:
        """Those that a message is signed with."""
        old = [self.old_secret] if self.old_secret is not None and now_s < self.old_until_s else []
        return [self.secret, *old]


def fold_webhook(state: WebhookState | None, entry: WebhookEntry) -> WebhookState:
    """The state behind one more entry."""
    if isinstance(entry, WebhookCreated):
        assert state is None, "a webhook is created once"
        return WebhookState(entry, entry.name, entry.url, entry.event_types, entry.secret, entry.at_s)
    assert state is not None
    match entry:
        case WebhookUpdated():
            return replace(
                state, name=entry.name, url=entry.url, event_types=entry.event_types, updated_s=entry.at_s
            )
        case WebhookSecretRotated():
            return replace(
                state,
                secret=entry.secret,
                old_secret=state.secret,
                old_until_s=entry.old_until_s,
                updated_s=entry.at_s,
            )
        case WebhookClaimed():
            return replace(state, claim=max(state.claim, entry.retry_count))
        case WebhookDeleted():
            return replace(state, is_deleted=True)


WEBHOOK_LOG: LogKind[WebhookEntry, WebhookState] = LogKind("webhook's log", WEBHOOK_ENTRIES, fold_webhook)


class WebhookShelf:
    """All webhooks of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.shelf: Shelf[WebhookEntry, WebhookState] = Shelf(store, "webhook", WEBHOOK_LOG, is_worked_at=False)
        self._clock = clock

    def put(self, created: WebhookCreated) -> WebhookState:
        """Make a webhook; made twice it is made once."""
        return self.shelf.begin(created.webhook_id, created)

    def find(self, webhook_id: str, project: str) -> WebhookState | None:
        """The webhook, if it is there and the project's."""
        state = self.shelf.state(webhook_id)
        is_there = state is not None and state.created.project == project and not state.is_deleted
        return state if is_there else None

    def wanting(self, event_type: str, project: str) -> list[WebhookState]:
        """Those of a project that are to be told of such an event."""
        found = (self.find(id_, project) for id_ in self.shelf.ids())
        return [state for state in found if state is not None and event_type in state.event_types]

    def update(
        self, webhook_id: str, *, name: str | None, url: str | None, event_types: tuple[str, ...] | None
    ) -> WebhookState:
        """Change what is given."""

        def decide(state: WebhookState) -> WebhookEntry | None:
            updated = WebhookUpdated(
                name=name or state.name,
                url=url or state.url,
                event_types=event_types or state.event_types,
                at_s=self._clock.now_s(),
            )
            was = (state.name, state.url, state.event_types)
            return None if (updated.name, updated.url, updated.event_types) == was else updated

        return self._append(webhook_id, decide)

    def rotate(self, webhook_id: str, *, keeps_old: bool) -> WebhookState:
        """Sign with a new secret; for a day with the old one, too, where that is kept."""
        now_s = self._clock.now_s()
        rotated = WebhookSecretRotated(
            secret=new_secret(), old_until_s=now_s + (OLD_SECRET_S if keeps_old else 0.0), at_s=now_s
        )
        return self._append(webhook_id, lambda _: rotated)

    def delete(self, webhook_id: str) -> None:
        """Send nothing any more."""
        deleted = WebhookDeleted(at_s=self._clock.now_s())
        self._append(webhook_id, lambda state: None if state.is_deleted else deleted)

    def _append(self, webhook_id: str, decide: Callable[[WebhookState], WebhookEntry | None]) -> WebhookState:
        state = self.shelf.log(webhook_id).append(lambda there: None if there is None else decide(there))
        assert state is not None, f"{webhook_id} was found before"
        return state


def new_secret() -> str:
    """One that nobody has."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()}"
