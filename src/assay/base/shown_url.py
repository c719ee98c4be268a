"""URLs of stores and ledgers without credentials, as they may be printed and recorded."""

import re

from assay.base.errors import ConfigError


def without_secrets(url: str) -> str:
    """Return the URL with `***` for the password and for query parameters whose names suggest a secret."""
    url = re.sub(r"(://[^:/?@]*:).*@", r"\1***@", url)
    return re.sub(r"(?i)([?&][^=&]*(?:password|secret|token|key|sig|credential)[^=&]*=)[^&]*", r"\1***", url)


def refuse_secrets(url: str, *, of: str) -> None:
    """Raise `ConfigError` if a URL that will be recorded holds a secret or an invisible character."""
    shown = without_secrets(url)
    if shown != url:
        raise ConfigError(
            f"{of} {shown}: the URL is recorded, and everybody who reads the record can read it. Leave out the "
            "secret part and pass it in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ...)."
        )
    if "://" in url and not url.isprintable():
        raise ConfigError(f"{of} {url}: it holds invisible characters. Use another URL.")
