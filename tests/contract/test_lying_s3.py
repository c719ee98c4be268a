"""A file that is written in parts to an S3 endpoint whose answers are lost, late, doubled or cut short."""

import os
import random

import pytest

from assay.base.errors import StoreError
from assay.store.objects import ObjectStore, open_store
from assay.store.retry_policy import RetryPolicy
from faulty_wire import LIES, OUTAGES, HttpWire, Strike, Trouble
from variants import soaked

DATA = random.Random(0).randbytes(20 << 20)
BEGIN, END = 0, 3
"""Requests: the file is begun, sent in two parts, and ended."""
ERRORS = {("truncated", BEGIN), ("lost", END), ("late", END), ("twice", END), ("truncated", END)}
"""The driver does not know what it began; or it ended the file, did not hear so, and is told there is none."""


def write(store: ObjectStore, key: str) -> None:
    with store.open_writer(key) as writer:
        writer.write(DATA)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [*LIES[:3], OUTAGES[0], *soaked(*LIES[3:], *OUTAGES[1:])])
def test_a_file_in_parts_is_whole_or_an_error(s3_url: str, monkeypatch: pytest.MonkeyPatch, trouble: Trouble) -> None:
    with HttpWire(os.environ["AWS_ENDPOINT_URL"]) as wire:
        monkeypatch.setenv("AWS_ENDPOINT_URL", wire.url)
        store = open_store(s3_url, RetryPolicy(60.0, notify=lambda text: None))
        for at in range(BEGIN, END + 1):
            key = f"file-{at}"
            wire.strike([Strike(at, trouble, 1.0 if trouble in OUTAGES else 0.0)])
            try:
                write(store, key)
            except StoreError as error:
                assert (trouble, at) in ERRORS, error
                wire.heal()
                assert not store.exists(key) or store.get(key) == DATA
                write(store, key)
            wire.heal()
            assert store.get(key) == DATA
