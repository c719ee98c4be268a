"""URLs of stores and ledgers, as they may be printed and kept: without what lets in whoever knows it."""

import re

from assay.base.errors import ConfigError


def without_secrets(url: str) -> str:
    """The URL with stars for a password before its host, and for parameters that are one by their names."""
    url = re.sub(r"(://[^:/?@]*:).*@", r"\1***@", url)
    return re.sub(r"(?i)([?&][^=&]*(?:password|secret|token|key|sig|credential)[^=&]*=)[^&]*", r"\1***", url)


def refuse_secrets(url: str, *, of: str) -> None:
    """Raise `ConfigError` where a URL that is to go on record is not everybody's to read, or cannot be read."""
    shown = without_secrets(url)
    if shown != url:
        raise ConfigError(
            f"{of} {shown}: the URL goes on record, and who reads the record reads it. Leave out what is "
            "secret, and give it in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ...)."
        )
    if "://" in url and not url.isprintable():
        raise ConfigError(f"{of} {url}: it holds signs that cannot be seen. Name another place.")
