"""What several kinds of tests need. What a machine lacks is skipped with its reason, unless it is required."""

import gc
import os
import secrets
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings

import shapes
from assay.base.errors import ConfigError
from assay.scoring.python_process import PythonProcess
from ray_cluster import RayCluster, loopback_only, missing_part
from slurm_cluster import SlurmCluster, missing_program

shapes.install()

# On a busy machine any example may take long; what must be fast has a test of its own.
settings.register_profile("busy", deadline=None, max_examples=40)
settings.load_profile("busy")

if not Path("/dev/nvidia0").exists():
    # GPU kernels run on the CPU. Triton reads it when it is imported.
    os.environ["TRITON_INTERPRET"] = "1"

# A checkout that belongs to somebody else, as in a container, is asked all the same.
os.environ.update(GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")


def _why_unfenced() -> str:
    """What this kernel lacks of the fence of python graders; empty where nothing."""
    try:
        with closing(PythonProcess("def grade(sample, item): return 0")) as process:
            process.grade({}, {})
    except ConfigError as error:
        return str(error).partition(". ")[0]
    return ""


if UNFENCED := _why_unfenced():
    # Tests of what graders say trust them; those of the fence are skipped.
    os.environ["ASSAY_PYTHON_GRADERS"] = "trusted"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected, a third of that time; do not scan their objects afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup() -> None:
    shapes.begin_test()


def require(part: str, present: bool, reason: str) -> None:
    """Skip the test where `part` is absent; fail instead where $ASSAY_REQUIRE (comma-separated) names it."""
    if present:
        return
    if part in os.environ.get("ASSAY_REQUIRE", "").split(","):
        pytest.fail(f"{part} is required here (ASSAY_REQUIRE), but {reason}", pytrace=False)
    pytest.skip(f"{part}: {reason}")


@pytest.fixture(scope="session")
def requires() -> Callable[[str, bool, str], None]:
    """`require`, for tests in folders below."""
    return require


@pytest.fixture(scope="session")
def fenced() -> None:
    """The kernel keeps python graders in."""
    require("landlock", not UNFENCED, UNFENCED)


@pytest.fixture(scope="session")
def published_data() -> Path:
    """The folder of published data with known answers: $ASSAY_DATA, or `../shared/data` of the checkout."""
    checkout = Path(__file__).parents[1]
    folder = Path(os.environ.get("ASSAY_DATA", checkout.parent / "shared" / "data"))
    require("data", folder.is_dir(), f"{folder} is not there; set ASSAY_DATA to the folder of published data")
    return folder


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    """A Ray cluster that has a head without processors, in a network of loopback alone. The caller adds nodes."""
    missing = missing_part()
    require("ray", missing is None, missing or "")
    cluster = RayCluster()
    with loopback_only():
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def postgres_programs() -> Path:
    """The folder of PostgreSQL's programs."""
    in_path = shutil.which("initdb")
    candidates = [Path(in_path).parent] if in_path else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    programs = next((folder for folder in candidates if (folder / "initdb").exists()), None)
    require("postgres", programs is not None, "initdb is not installed (apt-get install postgresql)")
    assert programs is not None
    return programs


@pytest.fixture(scope="session")
def postgres_url(postgres_programs: Path) -> Iterator[str]:
    """A throw-away PostgreSQL cluster on a Unix socket; one per session."""
    programs = postgres_programs
    # Not below pytest's own folders, which other users may not enter: the server refuses to run as root.
    with tempfile.TemporaryDirectory(prefix="assay-postgres-") as name:
        cluster, sockets = Path(name, "cluster"), Path(name, "sockets")
        sockets.mkdir()
        if os.geteuid() == 0:
            shutil.chown(name, "postgres")
            shutil.chown(sockets, "postgres")
        _as_postgres(programs / "initdb", "-D", cluster, "-A", "trust", "-U", "assay", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories='{sockets}' -c fsync=off"
        _as_postgres(programs / "pg_ctl", "-D", cluster, "-w", "-l", Path(name, "log"), "-o", options, "start")
        try:
            yield f"postgresql://assay@/postgres?host={sockets}"
        finally:
            _as_postgres(programs / "pg_ctl", "-D", cluster, "-m", "immediate", "stop")


def _as_postgres(*command: str | Path) -> None:
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    finished = subprocess.run(
        [*prefix, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/"
    )
    assert finished.returncode == 0, f"{command}: {finished.stderr}"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """A real S3 endpoint on loopback."""
    try:
        import moto.server as moto_server
    except ImportError:
        moto_server = None
    require("s3", moto_server is not None, "moto is not installed (pip install 'moto[server]')")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_url(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh bucket's URL, with the environment that reaches it."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{secrets.token_hex(4)}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{bucket}", method="PUT")).close()
    return f"s3://{bucket}/prefix"


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A real Slurm of two nodes; one per session."""
    missing = missing_program()
    require(
        "slurm",
        missing is None,
        f"{missing} is not installed (apt-get install munge slurmctld slurmd slurm-client)",
    )
    cluster = SlurmCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """That Slurm, as the one whose commands this test finds."""
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    return slurm_cluster
