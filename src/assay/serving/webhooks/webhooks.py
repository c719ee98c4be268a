"""Webhook endpoints of projects: URL, event types and signing secrets."""

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
from assay.serving.log_repository import LogRepository
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
"""Supported event types."""
OLD_SECRET_S = 86_400.0
_SECRET_BYTES = 32


@dataclass(frozen=True)
class WebhookState:
    """State of a webhook, folded from its log."""

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
    """Highest retry count of its create request that was answered with this webhook."""

    def secrets_at(self, now_s: float) -> list[str]:
        """Return the secrets that sign a message at `now_s`."""
        old = [self.old_secret] if self.old_secret is not None and now_s < self.old_until_s else []
        return [self.secret, *old]


def fold_webhook(state: WebhookState | None, entry: WebhookEntry) -> WebhookState:
    """Return the state after one more log entry."""
    if isinstance(entry, WebhookCreated):
        assert state is None, "a webhook is created once"
        return WebhookState(entry, entry.name, entry.url, entry.event_types, entry.secret, entry.at_s)
    assert state is not None
    match entry:
        case WebhookUpdated():
            return replace(state, name=entry.name, url=entry.url, event_types=entry.event_types, updated_s=entry.at_s)
        case WebhookSecretRotated():
            return replace(
                state, secret=entry.secret, old_secret=state.secret, old_until_s=entry.old_until_s, updated_s=entry.at_s
            )
        case WebhookClaimed():
            return replace(state, claim=max(state.claim, entry.retry_count))
        case WebhookDeleted():
            return replace(state, is_deleted=True)


WEBHOOK_LOG: LogKind[WebhookEntry, WebhookState] = LogKind("webhook's log", WEBHOOK_ENTRIES, fold_webhook)


class WebhookRepository:
    """Webhooks in an object store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.logs: LogRepository[WebhookEntry, WebhookState] = LogRepository(
            store, "webhook", WEBHOOK_LOG, tracks_open=False
        )
        self._clock = clock

    def put(self, created: WebhookCreated) -> WebhookState:
        """Create a webhook; idempotent for the same id."""
        return self.logs.begin(created.webhook_id, created)

    def find(self, webhook_id: str, project: str) -> WebhookState | None:
        """Return the webhook if it belongs to `project` and is not deleted."""
        state = self.logs.state(webhook_id)
        is_active = state is not None and state.created.project == project and not state.is_deleted
        return state if is_active else None

    def subscribed(self, event_type: str, project: str) -> list[WebhookState]:
        """Return the project's webhooks that subscribe to `event_type`."""
        found = (self.find(id_, project) for id_ in self.logs.ids())
        return [state for state in found if state is not None and event_type in state.event_types]

    def update(
        self, webhook_id: str, *, name: str | None, url: str | None, event_types: tuple[str, ...] | None
    ) -> WebhookState:
        """Change the given values."""

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
        """Replace the secret; with `keeps_old` the old one also signs for a day."""
        now_s = self._clock.now_s()
        rotated = WebhookSecretRotated(
            secret=new_secret(), old_until_s=now_s + (OLD_SECRET_S if keeps_old else 0.0), at_s=now_s
        )
        return self._append(webhook_id, lambda _: rotated)

    def delete(self, webhook_id: str) -> None:
        deleted = WebhookDeleted(at_s=self._clock.now_s())
        self._append(webhook_id, lambda state: None if state.is_deleted else deleted)

    def _append(self, webhook_id: str, decide: Callable[[WebhookState], WebhookEntry | None]) -> WebhookState:
        state = self.logs.log(webhook_id).append(lambda now: None if now is None else decide(now))
        assert state is not None, f"{webhook_id} was found before"
        return state


def new_secret() -> str:
    """Return a new random secret."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()}"
