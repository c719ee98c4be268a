"""What runs of CI say: where their time went, how tests are spread, which flake, and which a change reaches."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record


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


class FirstFailure(Record):
    """Median seconds until the first failure."""

    recorded_s: NonNegativeFloat
    ordered_s: NonNegativeFloat
    """In an order learned from other commits."""
    runs: PositiveInt


class MissedFailure(Record):
    """A failure that the selection missed."""

    commit: str
    test: str
    file: str


class CiBackTest(Record):
    """Recorded failures that test selection would have found."""

    failures: NonNegativeInt
    selected: NonNegativeInt
    low: NonNegativeFloat | None
    high: NonNegativeFloat | None
    missed: tuple[MissedFailure, ...]
    commits: NonNegativeInt
    selected_share: NonNegativeFloat | None
    left_out: dict[str, int]
    """Reason to the number of skipped failures."""


class CiChanged(Record):
    """The tests affected by changed files."""

    since: str
    """Commit hash."""
    files: tuple[str, ...]
    tests: tuple[str, ...]
    """Test files that depend on them."""
    test_files: NonNegativeInt
    selects_all: tuple[str, ...]
    unreached_files: tuple[str, ...]
    unknown: dict[str, str]
    """File to the assumption made."""
    back_test: CiBackTest | None


class CiReport(Record):
    """Statistics of CI runs."""

    wall_s: NonNegativeFloat | None
    """Median."""
    runs: NonNegativeInt
    commits: NonNegativeInt
    tests: NonNegativeInt
    spans: CiSpans
    floor_s: NonNegativeFloat | None
    floor_test: str | None
    bound_s: NonNegativeFloat | None
    """Lower bound for the requested shards."""
    shards: tuple[CiShard, ...]
    """Longest first."""
    flaky: tuple[FlakyTest, ...]
    """Most frequent first."""
    flaky_because: str
    order: tuple[str, ...]
    """The order that fails earliest."""
    first_failure: FirstFailure | None
    left_out: dict[str, str]
    """What was skipped, and why."""
    sources: dict[str, str]
    changed: CiChanged | None = None
