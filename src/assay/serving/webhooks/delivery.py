"""Delivers webhook messages: one worker at a time, by a lease, and one message at a time per webhook.

Delivery is at least once. If a worker dies between a delivery and its log entry, the message is sent again with the
same `webhook-id`.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress

from assay.base.clock import Clock
from assay.base.errors import AssayError, FencedError
from assay.serving.webhooks.outbox import MessageState, Outbox
from assay.serving.webhooks.post import AddressError, NotDeliveredError, Resolve, post, resolved, signed_headers
from assay.store.leased_worker import WorkUnit
from assay.store.leases import Lease
from assay.store.objects import ObjectStore

COURIER = WorkUnit("courier", "courier")
"""All messages of a store are one unit of work."""
POLL_S = 1.0
AT_ONCE = 8
"""Webhooks served concurrently, so that an unresponsive one does not delay others."""


class WebhookDelivery:
    """A `WorkHandler` that delivers the messages of a store."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        allowed_hosts: Sequence[str],
        resolve: Resolve = resolved,
        pool: Executor | None = None,
    ) -> None:
        """`allowed_hosts`: hosts that may have private addresses."""
        self._clock = clock
        self._allowed_hosts = allowed_hosts
        self._resolve = resolve
        self._pool = pool or ThreadPoolExecutor(AT_ONCE, thread_name_prefix="courier")
        self._outbox = Outbox(store, clock)
        self._sending: dict[str, Future[None]] = {}
        """By webhook id."""

    def due(self) -> Iterator[WorkUnit]:
        """Yield the unit, whose lease is kept while there is no message."""
        yield COURIER

    def claim(self, unit: WorkUnit, lease: Lease, worker: str) -> bool:  # noqa: ARG002
        return True

    def let_go(self, unit_id: str) -> bool:  # noqa: ARG002
        """Wait for the deliveries in progress, so that the next worker does not repeat them."""
        wait(self._sending.values())
        return True

    def step(self, unit: WorkUnit, lease: Lease) -> None:  # noqa: ARG002
        """Send due messages to webhooks without a delivery in progress."""
        if not lease.is_newest():
            raise FencedError("another worker delivers webhooks.")
        for message in self._outbox.due():
            webhook_id = message.created.webhook_id
            if (sending := self._sending.get(webhook_id)) is None or sending.done():
                self._sending[webhook_id] = self._pool.submit(self._send, message)

    def has_something_due(self) -> bool:
        return any(True for _ in self._outbox.due())

    def _send(self, message: MessageState) -> None:
        with suppress(AssayError):  # not logged, so it is retried
            self._deliver(message)

    def _deliver(self, message: MessageState) -> None:
        """Try to deliver a message, and record the outcome."""
        webhook = self._outbox.webhooks.state(message.created.webhook_id)
        if webhook is None or webhook.is_deleted:
            self._outbox.record_attempt(message, "the webhook was deleted", is_delivered=False, can_retry=False)
            return
        now_s, due = self._clock.now_s(), message.created
        headers = signed_headers(due.message_id, due.body, webhook.secrets_at(now_s), now_s=now_s)
        try:
            status = post(webhook.url, due.body, headers, self._allowed_hosts, self._resolve)
        except (AddressError, NotDeliveredError) as error:
            self._outbox.record_attempt(message, str(error), is_delivered=False)
        else:
            self._outbox.record_attempt(message, f"status {status}", is_delivered=200 <= status < 300)
