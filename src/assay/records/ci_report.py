"""What recorded runs of CI say: where their time went, how tests are spread best, and which of them flake."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record


class CiShard(Record):
    """Tests that one machine runs, one after another."""

    seconds: NonNegativeFloat
    """Their sum."""
    tests: tuple[str, ...]
    """The longest first."""


class FlakyTest(Record):
    """A test that passed and failed on one commit in one configuration."""

    test: str
    rate: NonNegativeFloat
    """Failures per run where no commit broke it: the posterior's median (Jeffreys' prior)."""
    low: NonNegativeFloat
    """The 2.5% quantile of what the rate may be."""
    high: NonNegativeFloat
    """The 97.5% quantile."""
    failures: PositiveInt
    """In the runs that say so: those of commits with several runs, not all of which failed."""
    runs: PositiveInt
    """Such runs."""
    commits: PositiveInt
    """Commits and configurations in which it did both."""


class CiSpans(Record):
    """Seconds of all files together; null is what they do not say."""

    tests_s: NonNegativeFloat
    """In tests: set-up, call and tear-down, over all workers."""
    setup_s: NonNegativeFloat | None
    call_s: NonNegativeFloat | None
    teardown_s: NonNegativeFloat | None
    outside_s: NonNegativeFloat | None
    """In no test, while no worker had one: start, imports, collection. Null where workers overlap and have no
    names."""
    idle_s: NonNegativeFloat | None
    """Seconds of workers that had finished while the busiest one had not; null where workers have no names."""
    workers: NonNegativeInt | None
    """The most in one file; null where the tests of a file take longer than the file and nobody says who ran
    them."""


class FirstFailure(Record):
    """Seconds of tests until the first one fails, over recorded runs that failed: medians."""

    recorded_s: NonNegativeFloat
    """In the order of the files."""
    ordered_s: NonNegativeFloat
    """In an order made from the runs of all *other* commits."""
    runs: PositiveInt
    """Runs that failed."""


class CiReport(Record):
    """What runs of CI on record say."""

    wall_s: NonNegativeFloat
    """The median run's; a run takes as long as its longest file. A file that does not say it takes as long as
    its tests, one after another."""
    runs: PositiveInt
    commits: NonNegativeInt
    """Known ones."""
    tests: PositiveInt
    spans: CiSpans
    floor_s: NonNegativeFloat
    """The longest test (median over runs): no number of machines is quicker."""
    floor_test: str
    bound_s: NonNegativeFloat | None
    """What no way to cut the tests into so many shards beats: the longest test, or an even share. Null where
    no shards were asked for."""
    shards: tuple[CiShard, ...]
    """As many as were asked for, the longest first."""
    flaky: tuple[FlakyTest, ...]
    """The most frequent failures first."""
    flaky_because: str
    """What `flaky` rests on, and what would tell more."""
    order: tuple[str, ...]
    """Tests, in the order that fails earliest: by chance to fail per second. Empty where no
    outcome is on record."""
    first_failure: FirstFailure | None
    """What that order gains; null where no run failed, or no other commit is on record."""
    left_out: dict[str, str]
    """What was not counted -> why."""
    sources: dict[str, str]
    """What was read -> SHA-256 of its bytes."""
