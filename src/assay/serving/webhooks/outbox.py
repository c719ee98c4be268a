"""Outbox of webhook messages: one message per webhook and event, until it is delivered or given up.

    a resource ends --> messages with ids derived from it and the webhook --> its work marker is closed
                         | due at once, then with growing pauses, for three days
                         +--> tried ... delivered | given_up

Messages are written before the work marker is closed, and any worker may do both, so no message is lost and none is
created twice.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
from assay.records.webhook import MESSAGE_ENTRIES, MessageDue, MessageEntry, MessageTried
from assay.serving.ids import timed_id
from assay.serving.repository import ResourceRepository, ResourceState, resource_log
from assay.serving.webhooks.webhooks import WebhookRepository
from assay.store.objects import ObjectStore

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 6 * 3600.0
RETRY_PERIOD_S = 3 * 86_400.0


@dataclass(frozen=True)
class MessageState(ResourceState[MessageDue]):
    """State of a message, folded from its log."""

    num_tries: int = 0
    next_s: float = 0.0
    """Time of the next attempt."""
    response: str = ""
    """Response to the last attempt, or why there was none."""
    outcome: Literal["waiting", "delivered", "again", "given_up"] = "waiting"

    @property
    def is_over(self) -> bool:
        return self.outcome in ("delivered", "given_up")

    def pause_s(self) -> float:
        """Return the pause before the next attempt."""
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 4.0**self.num_tries)

    def changes(self, entry: MessageEntry) -> dict[str, Any]:
        assert isinstance(entry, MessageTried), entry
        return {
            "num_tries": self.num_tries + 1,
            "next_s": entry.at_s + self.pause_s(),
            "response": entry.response,
            "outcome": entry.outcome,
        }


class Outbox(ResourceRepository[MessageEntry, MessageState]):
    """Messages in an object store."""

    id_kind = "message"
    log_kind = resource_log("message's log", MESSAGE_ENTRIES, MessageState)
    title, param, id_field = "message", "message_id", "message_id"
    tracks_open = True

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(store, clock)
        self.webhooks = WebhookRepository(store, clock)

    def enqueue(self, resource_id: str, event_type: str, *, project: str, ended_s: float) -> None:
        """Create the messages of an ended resource; idempotent."""
        for webhook in self.webhooks.subscribed(event_type, project):
            digits = sha256_of_json([resource_id, webhook.created.webhook_id, event_type])
            due = MessageDue(
                message_id=timed_id("message", ended_s, digits),
                webhook_id=webhook.created.webhook_id,
                event_type=event_type,
                body=event_body(event_type, resource_id, ended_s),
                at_s=self._clock.now_s(),
            )
            self.put(due)

    def due(self) -> Iterator[MessageState]:
        """Yield messages to send now, oldest first."""
        now_s = self._clock.now_s()
        for message_id, state in self.states(self.open_ids()):
            if state.is_over:
                self.close(message_id)
            elif state.next_s <= now_s:
                yield state

    def record_attempt(self, state: MessageState, response: str, *, is_delivered: bool, can_retry: bool = True) -> None:
        """Log the outcome of an attempt. `can_retry`: whether a retry makes sense."""
        now_s, message_id = self._clock.now_s(), state.created.message_id
        is_last = not can_retry or now_s + state.pause_s() - state.created.at_s > RETRY_PERIOD_S
        tried = MessageTried(
            at_s=now_s, response=response, outcome="delivered" if is_delivered else "given_up" if is_last else "again"
        )
        after = self.log(message_id).append(lambda now: None if now is None or now.is_over else tried)
        if after is not None and after.is_over:
            self.close(message_id)

    def of_webhook(self, webhook_id: str) -> Iterator[MessageState]:
        """Yield all messages of a webhook, oldest first."""
        return (state for _, state in self.states(self.ids()) if state.created.webhook_id == webhook_id)


def event_body(event_type: str, resource_id: str, at_s: float) -> str:
    """Return the JSON of an event; deterministic."""
    event_id = timed_id("evt", at_s, sha256_of_json([event_type, resource_id]))
    tree = {"id": event_id, "object": "event", "created_at": int(at_s), "type": event_type, "data": {"id": resource_id}}
    return json.dumps(tree)
