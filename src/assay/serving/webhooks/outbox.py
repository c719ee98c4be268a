"""What is due to webhooks: one message for each webhook and event, until it is delivered or given up.

    something has ended --> messages, each under an id that follows from it and the webhook --> it is closed
                         | due: at once, then after pauses that grow, for three days
                         +--> tried ... delivered | given_up

A message is put before what it tells of is closed, and that is closed by whoever finds it ended. So none is
forgotten, and made twice it is made once.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
from assay.records.webhook import MESSAGE_ENTRIES, MessageDue, MessageEntry, MessageTried
from assay.serving.ids import moment_id
from assay.serving.job_repository import Shelf
from assay.serving.webhooks.webhooks import WebhookShelf
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 6 * 3600.0
GIVEN_UP_S = 3 * 86_400.0


@dataclass(frozen=True)
class MessageState:
    """A message as its entries say."""

    due: MessageDue
    num_tries: int = 0
    next_s: float = 0.0
    """When it is tried next."""
    said: str = ""
    """The answer to the last try, or why there was none."""
    outcome: Literal["waiting", "delivered", "again", "given_up"] = "waiting"

    @property
    def is_over(self) -> bool:
        """Whether it is tried no more."""
        return self.outcome in ("delivered", "given_up")

    def pause_s(self) -> float:
        """How long to wait behind the next try, should it fail."""
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 4.0**self.num_tries)


def fold_message(state: MessageState | None, entry: MessageEntry) -> MessageState:
    """The state behind one more entry."""
    if isinstance(entry, MessageDue):
        assert state is None, "a message is made once"
        return MessageState(entry)
    assert state is not None
    return replace(
        state,
        num_tries=state.num_tries + 1,
        next_s=entry.at_s + state.pause_s(),
        said=entry.said,
        outcome=entry.outcome,
    )


MESSAGE_LOG: LogKind[MessageEntry, MessageState] = LogKind("message's log", MESSAGE_ENTRIES, fold_message)


class Outbox:
    """All messages of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.webhooks = WebhookShelf(store, clock)
        self._shelf: Shelf[MessageEntry, MessageState] = Shelf(store, "message", MESSAGE_LOG, is_worked_at=True)
        self._clock = clock

    def plan(self, thing_id: str, event_type: str, *, project: str, ended_s: float) -> None:
        """Make the messages of a project's thing that has ended."""
        for webhook in self.webhooks.wanting(event_type, project):
            digits = sha256_of_json([thing_id, webhook.created.webhook_id, event_type])
            due = MessageDue(
                message_id=moment_id("message", ended_s, digits),
                webhook_id=webhook.created.webhook_id,
                event_type=event_type,
                body=event_body(event_type, thing_id, ended_s),
                at_s=self._clock.now_s(),
            )
            self._shelf.begin(due.message_id, due)

    def due(self) -> Iterator[MessageState]:
        """The messages that are to be sent now, the oldest first."""
        now_s = self._clock.now_s()
        for message_id, state in self._shelf.states(self._shelf.open_ids()):
            if state.is_over:
                self._shelf.close(message_id)
            elif state.next_s <= now_s:
                yield state

    def tried(self, state: MessageState, said: str, *, is_delivered: bool, is_wanted: bool = True) -> None:
        """Write down what came of a try. `is_wanted`: whether another makes sense."""
        now_s, message_id = self._clock.now_s(), state.due.message_id
        is_last = not is_wanted or now_s + state.pause_s() - state.due.at_s > GIVEN_UP_S
        tried = MessageTried(
            at_s=now_s,
            said=said,
            outcome="delivered" if is_delivered else "given_up" if is_last else "again",
        )
        after = self._shelf.log(message_id).append(lambda now: None if now is None or now.is_over else tried)
        if after is not None and after.is_over:
            self._shelf.close(message_id)

    def of_webhook(self, webhook_id: str) -> Iterator[MessageState]:
        """All that ever was due to a webhook, the oldest first."""
        return (
            state for _, state in self._shelf.states(self._shelf.ids()) if state.due.webhook_id == webhook_id
        )


def event_body(event_type: str, thing_id: str, at_s: float) -> str:
    """The JSON of an event; told again it is the same."""
    event_id = moment_id("evt", at_s, sha256_of_json([event_type, thing_id]))
    tree = {
        "id": event_id,
        "object": "event",
        "created_at": int(at_s),
        "type": event_type,
        "data": {"id": thing_id},
    }
    return json.dumps(tree)
