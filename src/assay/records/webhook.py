"""What happens to a webhook, and to each message that is due to it, as entries of their logs.

A webhook's secret signs, so it cannot be kept as a digest: who reads the store can sign.
"""

from typing import Literal

from assay.base.names import Name
from assay.records.claimed import Claimed
from assay.records.record import Record


class WebhookCreated(Record):
    """A project wants to be told of events at an address."""

    type: Literal["created"] = "created"
    webhook_id: str
    project: Name
    name: str
    """For people."""
    url: str
    event_types: tuple[str, ...]
    secret: str
    """`whsec_` and the Base64 of the key that messages are signed with."""
    at_s: float
    """Seconds since the Unix epoch; so for every entry."""
    request_sha256: str
    """Digest of the request: what tells a repeat of it."""


class WebhookUpdated(Record):
    """It is as this says from now on."""

    type: Literal["updated"] = "updated"
    name: str
    url: str
    event_types: tuple[str, ...]
    at_s: float


class WebhookSecretRotated(Record):
    """Messages are signed with another secret."""

    type: Literal["rotated"] = "rotated"
    secret: str
    old_until_s: float
    """Until when they are signed with the old one, too."""
    at_s: float


class WebhookClaimed(Claimed, Record):
    """A repeat of the request that created it was answered with it, and with a new secret."""


class WebhookDeleted(Record):
    """Nothing is sent any more."""

    type: Literal["deleted"] = "deleted"
    at_s: float


WebhookEntry = WebhookCreated | WebhookUpdated | WebhookSecretRotated | WebhookClaimed | WebhookDeleted

WEBHOOK_ENTRIES: dict[str, type[WebhookEntry]] = {
    "created": WebhookCreated,
    "updated": WebhookUpdated,
    "rotated": WebhookSecretRotated,
    "claimed": WebhookClaimed,
    "deleted": WebhookDeleted,
}
"""By an entry's `type`."""


class MessageDue(Record):
    """An event is to be told to a webhook."""

    type: Literal["due"] = "due"
    message_id: str
    """The `webhook-id` of every try."""
    webhook_id: str
    event_type: str
    body: str
    """What is sent, to the byte."""
    at_s: float


class MessageTried(Record):
    """It was sent, or could not be."""

    type: Literal["tried"] = "tried"
    at_s: float
    response: str
    """The answer's status, or why there was none."""
    outcome: Literal["delivered", "again", "given_up"]


MessageEntry = MessageDue | MessageTried

MESSAGE_ENTRIES: dict[str, type[MessageEntry]] = {"due": MessageDue, "tried": MessageTried}
"""By an entry's `type`."""
