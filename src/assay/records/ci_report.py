"""What runs of CI say: where their time went, how tests are spread, which flake, and which a change reaches."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record
from assay.records.statement import Statement


class CiShard(Record):
    """Tests of one machine."""

    seconds: NonNegativeFloat
    tests: tuple[str, ...]


class FlakyTest(Record):
    """A test with both outcomes on one commit."""

    test: str
    rate: NonNegativeFloat
    low: NonNegativeFloat
    high: NonNegativeFloat
    failures: PositiveInt
    runs: PositiveInt
    commits: PositiveInt


class CiSpans(Record):
    """Seconds over all files."""

    tests_s: NonNegativeFloat
    setup_s: NonNegativeFloat | None
    call_s: NonNegativeFloat | None
    teardown_s: NonNegativeFloat | None
    outside_s: NonNegativeFloat | None
    """Outside tests: start, imports, collection."""
    idle_s: NonNegativeFloat | None
    """Workers waiting for the busiest one."""
    workers: NonNegativeInt | None
    """Maximum in a file."""


class CiChanged(Record):
    """The tests affected by changed files."""

    since: str
    """Commit hash."""
    files: tuple[str, ...]
    tests: tuple[str, ...]
    """Test files that depend on them."""
    test_files: NonNegativeInt
    selects_all: tuple[str, ...]
    """Settings and dependencies."""
    unreached_files: tuple[str, ...]
    """Python files that no test imports."""
    unknown: tuple[str, ...]
    """Files whose readers are unknown: deleted ones, and those that are not Python."""


class CiReport(Record):
    """Statistics of CI runs."""

    wall_s: NonNegativeFloat
    """Median."""
    runs: NonNegativeInt
    commits: NonNegativeInt
    tests: NonNegativeInt
    spans: CiSpans
    floor_s: NonNegativeFloat
    floor_test: str
    bound_s: NonNegativeFloat | None
    """Lower bound for the requested shards."""
    shards: tuple[CiShard, ...]
    """Longest first."""
    flaky: tuple[FlakyTest, ...]
    """Most frequent first."""
    flaky_because: Statement
    bad_runs: tuple[str, ...]
    """Files left out of outcomes: many tests failed that pass in the commit's other runs."""
    untimed_tests: NonNegativeInt
    """Tests without a recorded time, which count as 0 s."""
    sources: dict[str, str]
