"""Webhook endpoints of projects: URL, event types and signing secrets."""

import base64
import secrets
from dataclasses import dataclass
from typing import Any, Self

from assay.records.webhook import (
    WEBHOOK_ENTRIES,
    WebhookClaimed,
    WebhookCreated,
    WebhookDeleted,
    WebhookEntry,
    WebhookSecretRotated,
    WebhookUpdated,
)
from assay.serving.idempotency_keys import IdempotentRepository
from assay.serving.repository import ResourceState, resource_log

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
class WebhookState(ResourceState[WebhookCreated]):
    """State of a webhook, folded from its log."""

    updated: WebhookUpdated | None = None
    rotated: WebhookSecretRotated | None = None
    old_secret: str | None = None
    updated_s: float = 0.0

    @classmethod
    def created_by(cls, created: WebhookCreated) -> Self:
        return cls(created, updated_s=created.at_s)

    @property
    def name(self) -> str:
        return (self.updated or self.created).name

    @property
    def url(self) -> str:
        return (self.updated or self.created).url

    @property
    def event_types(self) -> tuple[str, ...]:
        return (self.updated or self.created).event_types

    @property
    def secret(self) -> str:
        return (self.rotated or self.created).secret

    def secrets_at(self, now_s: float) -> list[str]:
        """Return the secrets that sign a message at `now_s`."""
        old = [self.old_secret] if self.old_secret and self.rotated and now_s < self.rotated.old_until_s else []
        return [self.secret, *old]

    def changes(self, entry: WebhookEntry) -> dict[str, Any]:
        match entry:
            case WebhookUpdated():
                return {"updated": entry, "updated_s": entry.at_s}
            case WebhookSecretRotated():
                return {"rotated": entry, "old_secret": self.secret, "updated_s": entry.at_s}
            case WebhookDeleted():
                return {"is_deleted": True}
            case _:
                raise AssertionError(entry)


class WebhookRepository(IdempotentRepository[WebhookEntry, WebhookState]):
    """Webhooks in an object store."""

    id_kind = "webhook"
    log_kind = resource_log("webhook's log", WEBHOOK_ENTRIES, WebhookState)
    title, param, id_field = "webhook", "webhook_endpoint_id", "webhook_id"
    claimed = WebhookClaimed

    def subscribed(self, event_type: str, project: str) -> list[WebhookState]:
        """Return the project's webhooks that subscribe to `event_type`."""
        found = (self.find(id_, project) for id_ in self.ids())
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

        return self.change(webhook_id, decide)

    def rotate(self, webhook_id: str, *, keeps_old: bool) -> WebhookState:
        """Replace the secret; with `keeps_old` the old one also signs for a day."""
        now_s = self._clock.now_s()
        rotated = WebhookSecretRotated(
            secret=new_secret(), old_until_s=now_s + (OLD_SECRET_S if keeps_old else 0.0), at_s=now_s
        )
        return self.change(webhook_id, lambda _: rotated)

    def delete(self, webhook_id: str) -> None:
        deleted = WebhookDeleted(at_s=self._clock.now_s())
        self.change(webhook_id, lambda state: None if state.is_deleted else deleted)


def new_secret() -> str:
    """Return a new random secret."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()}"
