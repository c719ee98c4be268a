"""Asks for things to be made, one after the other or all at once, by the official SDK: needs nothing else.

    python -m compatibility.creates sync|async|crowd URL FILE NUMBER [KEY]

A crowd is one asynchronous client that asks for NUMBER jobs at once; the others ask for NUMBER jobs, files and
uploads each, in turn. No two are asked for in the same words, unless a KEY is given: it begins the
`Idempotency-Key` of each, and the words are the same. FILE is the id of what the jobs are to be trained on. The
last line is JSON with what was answered: a list of [kind, number, id, seed of a job].
"""

import asyncio
import json
import sys
from typing import Any

import openai

from compatibility.whole_life import Awaited


async def create_sequentially(client: Any, file: str, number: int) -> list[list[Any]]:
    """One after the other."""
    created = [await a_job(client, file, n) for n in range(number)]
    for n in range(number):
        sent = await client.files.create(file=(f"{n}.jsonl", contents(n)), purpose="evals")
        created.append(["file", n, sent.id, None])
    for n in range(number):
        upload = await client.uploads.upload_file_chunked(
            file=contents(number + n), filename=f"u{n}.jsonl", bytes=len(contents(number + n)),
            mime_type="text/jsonl", purpose="batch", part_size=1 << 20,
        )  # fmt: skip
        created.append(["upload", n, upload.file.id, None])
    return created


async def at_once(client: Any, file: str, number: int, key: str) -> list[list[Any]]:
    """Jobs, by so many who do not wait for each other."""
    return await asyncio.gather(*(a_job(client, file, n, key) for n in range(number)))


async def a_job(client: Any, file: str, n: int, key: str = "") -> list[Any]:
    """One more."""
    words = {"extra_headers": {"Idempotency-Key": f"{key}{n}"}} if key else {"seed": n}
    job = await client.fine_tuning.jobs.create(model="tiny", training_file=file, **words)
    return ["job", n, job.id, job.seed]


def contents(n: int) -> bytes:
    """Of a file that is none other's."""
    return f"{n:08d}".encode() * 4096


if __name__ == "__main__":
    manner, url, file, number, *key = sys.argv[1:]
    sdk: Any = openai.OpenAI if manner == "sync" else openai.AsyncOpenAI
    client = sdk(base_url=url, api_key="any")
    if manner == "crowd":
        created = asyncio.run(at_once(client, file, int(number), *(key or [""])))
    else:
        created = asyncio.run(create_sequentially(Awaited(client) if manner == "sync" else client, file, int(number)))
    print(json.dumps(created))
