"""Every call of the openai SDK that is installed, by asking each and stopping before anything is sent.

    python walk.py  -->  {"version": "3.54.0", "calls": {"files.create": "POST /files", ...}}

Needs nothing but the SDK, so that it runs in an environment that holds only that. A helper of the SDK (`parse`,
`create_and_poll`) stands there with the request that it makes first; one that makes none is left out.
"""

import inspect
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import openai
from openai._resource import SyncAPIResource

OTHER_VIEWS = ("with_raw_response", "with_streaming_response")
FILLERS: tuple[Any, ...] = (b"x", [], {}, "x", 1)
"""What is given for a parameter that is no text; one after the other, until the SDK takes it."""


class RequestSentError(Exception):
    """A request that is about to leave."""


class Stopped(openai.OpenAI):
    """A client whose requests never leave."""

    def request(self, _: Any, options: Any, **__: Any) -> Any:  # type: ignore[override]
        raise RequestSentError(f"{options.method.upper()} {unquote(options.url)}")


def calls() -> dict[str, str]:
    """Name of a call -> method and path below the base URL, parameters in braces."""
    client = Stopped(api_key="any", base_url="http://localhost/v1", max_retries=0)
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, method in _methods(client, ""):
            if (request := _request_of(method)) is not None:
                found[name] = request
    return dict(sorted(found.items()))


def _methods(holder: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in dir(type(holder)):
        if name.startswith("_") or name in OTHER_VIEWS:
            continue
        present = inspect.getattr_static(type(holder), name)
        if inspect.isfunction(present):
            if prefix:
                yield prefix + name, getattr(holder, name)
        elif isinstance(below := getattr(holder, name, None), SyncAPIResource):
            yield from _methods(below, f"{prefix}{name}.")


def _request_of(method: Any) -> str | None:
    parameters = inspect.signature(method).parameters.values()
    needed = [
        parameter for parameter in parameters if parameter.default is parameter.empty and parameter.kind not in (2, 4)
    ]
    for filler in FILLERS:
        arguments = {item.name: f"{{{item.name}}}" if _is_text(item.annotation) else filler for item in needed}
        try:
            method(**arguments)
        except RequestSentError as error:
            return re.sub(r"\?.*", "", str(error))
        except Exception:
            continue
        return None
    return None


def _is_text(annotation: Any) -> bool:
    return annotation in (str, "str")


if __name__ == "__main__":
    print(json.dumps({"version": openai.__version__, "calls": calls()}, indent=1))
