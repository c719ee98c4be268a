"""Who reads a URL in a record, a log or an error does not learn the password in it."""

import pytest

from assay.base.shown_url import without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("postgresql://assay@host/runs", "postgresql://assay@host/runs"),
        ("postgresql://assay:hush@host:5432/runs", "postgresql://assay:***@host:5432/runs"),
        ("postgresql://assay:hu/s?h@x@host/runs", "postgresql://assay:***@host/runs"),
        ("postgresql://host/runs?user=a&password=hush&x=1", "postgresql://host/runs?user=a&password=***&x=1"),
        ("s3://KEY:hush@bucket/prefix", "s3://KEY:***@bucket/prefix"),
        ("https://host/x?X-Amz-Signature=hush&y=1", "https://host/x?X-Amz-Signature=***&y=1"),
    ],
)
def test_a_url_is_shown_without_what_is_secret(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
