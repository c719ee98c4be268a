"""A large object passes through a process in blocks, whatever the store: measured in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MB = 1 << 20
PROGRAM = """
import hashlib, sys
from pathlib import Path
from assay.store.objects import open_store

def peak_mb():
    # Not ru_maxrss: a child begins with its parent's.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

url, how, num_mb = sys.argv[1], sys.argv[2], int(sys.argv[3])
store, block = open_store(url), bytes(range(256)) * 4096
store.put("small", block)
with store.open_reader("small") as reader:
    reader.read()
before, digest = peak_mb(), hashlib.sha256()
if how == "write":
    with store.open_writer("large") as writer:
        for _ in range(num_mb):
            writer.write(block)
else:
    with store.open_reader("large") as reader:
        while part := reader.read(1 << 20):
            digest.update(part)
print(f"{peak_mb() - before:.1f} {digest.hexdigest()}")
"""


def grown_mb(url: str, how: str, num_mb: int) -> tuple[float, str]:
    """By how many MB the peak of a process rises, and the digest of what it read."""
    request = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, how, str(num_mb)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    grown, digest = request.stdout.split()
    return float(grown), digest


@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("num_mb", [128])
def test_a_large_object_is_written_and_read_in_little_memory(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, num_mb: int
) -> None:
    url = str(tmp_path) if kind == "folder" else request.getfixturevalue("s3_url")
    written_mb, _ = grown_mb(url, "write", num_mb)
    read_mb, digest = grown_mb(url, "read", num_mb)
    print(f"{kind}: {num_mb} MB written with {written_mb:.0f} MB, read with {read_mb:.0f} MB")
    assert len(digest) == 64
    assert read_mb < 32
    assert written_mb < 64
