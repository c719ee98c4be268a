"""An S3 endpoint that keeps its objects on the disk, behind a line of so many bytes a second.

For objects that are larger than memory: what is asked of it is answered from files, block by block. Knows one
bucket, and of S3 what a client needs to write, read, list and delete; `faulty_wire` is for lies and outages.
"""

import itertools
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from faulty_wire import Line

BUCKET = "bucket"
_BLOCK = 1 << 18


class _Part(NamedTuple):
    path: Path
    num_bytes: int


class SlowS3:
    """The endpoint, while its block runs; `environment` is what leads a client there."""

    def __init__(self, folder: Path, bytes_per_s: float) -> None:
        self.line = Line(bytes_per_s)
        self.objects: dict[str, list[_Part]] = {}
        self.uploads: dict[str, dict[int, _Part]] = {}
        self.lock = threading.Lock()
        self._folder = folder
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Request)
        self._server.daemon_threads = True
        self._server.endpoint = self  # type: ignore[attr-defined]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
        return {"AWS_ENDPOINT_URL": url, **keys}

    def new_file(self) -> Path:
        return self._folder / f"{next(self._numbers)}"


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _endpoint(self) -> SlowS3:
        endpoint: SlowS3 = self.server.endpoint  # type: ignore[attr-defined]
        return endpoint

    def do_PUT(self) -> None:
        key, query = self._request()
        part = self._received()
        endpoint = self._endpoint
        with endpoint.lock:
            if "uploadId" in query:
                endpoint.uploads[query["uploadId"]][int(query["partNumber"])] = part
            elif self.headers.get("If-None-Match") == "*" and key in endpoint.objects:
                self._respond(412)
                return
            else:
                endpoint.objects[key] = [part]
        self._respond(200, ETag=f'"{part.path.name}"')

    def do_POST(self) -> None:
        key, query = self._request()
        body, endpoint = self._received().path, self._endpoint
        with endpoint.lock:
            if "delete" in query:
                gone = [unescape(item) for item in re.findall("<Key>(.*?)</Key>", body.read_text())]
                for text in gone:
                    endpoint.objects.pop(text, None)
                xml = "".join(f"<Deleted><Key>{escape(text)}</Key></Deleted>" for text in gone)
                self._respond(200, f"<DeleteResult>{xml}</DeleteResult>")
                return
            if "uploadId" not in query:
                upload = endpoint.new_file().name
                endpoint.uploads[upload] = {}
                xml = f"<UploadId>{upload}</UploadId>"
                self._respond(200, f"<InitiateMultipartUploadResult>{xml}</InitiateMultipartUploadResult>")
                return
            parts = endpoint.uploads.pop(query["uploadId"])
            endpoint.objects[key] = [parts[number] for number in sorted(parts)]
        xml = f'<ETag>"{query["uploadId"]}"</ETag>'
        self._respond(200, f"<CompleteMultipartUploadResult>{xml}</CompleteMultipartUploadResult>")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        key, query = self._request()
        if "list-type" in query:
            self._list(query.get("prefix", ""))
            return
        parts = self._endpoint.objects.get(key)
        if parts is None:
            self._respond(404)
            return
        size = sum(part.num_bytes for part in parts)
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        begin, end = int(first or 0), min(int(last) + 1, size) if last else size
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(end - begin))
        if first:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self._end_of_headers()
        if self.command == "GET":
            for block in _blocks(parts, begin, end):
                self._endpoint.line.carry(len(block))
                self.wfile.write(block)

    def _list(self, prefix: str) -> None:
        with self._endpoint.lock:
            found = [(key, parts) for key, parts in sorted(self._endpoint.objects.items()) if key.startswith(prefix)]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{sum(part.num_bytes for part in parts)}</Size>"
            '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"x"</ETag></Contents>'
            for key, parts in found
        )
        self._respond(200, f"<ListBucketResult>{contents}<IsTruncated>false</IsTruncated></ListBucketResult>")

    def _request(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        return unquote(url.path).removeprefix(f"/{BUCKET}/"), dict(parse_qsl(url.query, keep_blank_values=True))

    def _received(self) -> _Part:
        """The body, in a file."""
        path, num_bytes = self._endpoint.new_file(), int(self.headers.get("Content-Length", 0))
        with path.open("wb") as file:
            left = num_bytes
            while left:
                block = self.rfile.read(min(_BLOCK, left))
                if not block:
                    raise ConnectionResetError
                self._endpoint.line.carry(len(block))
                file.write(block)
                left -= len(block)
        return _Part(path, num_bytes)

    def _respond(self, status: int, xml: str = "", **headers: str) -> None:
        data = xml.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self._end_of_headers()
        self.wfile.write(data)

    def _end_of_headers(self) -> None:
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if not any(line.startswith(b"ETag") for line in self._headers_buffer):  # type: ignore[attr-defined]
            self.send_header("ETag", '"x"')
        self.end_headers()

    def log_message(self, format: str, *values: object) -> None: ...


def _blocks(parts: list[_Part], begin: int, end: int) -> Iterator[bytes]:
    """The bytes [begin, end) of what the parts make up."""
    before = 0
    for part in parts:
        first, last = max(begin - before, 0), min(end - before, part.num_bytes)
        before += part.num_bytes
        with part.path.open("rb") as file:
            while first < last:
                block = os.pread(file.fileno(), min(_BLOCK, last - first), first)
                yield block
                first += len(block)
