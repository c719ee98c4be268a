"""What runs of CI say: where their time went, how tests are spread, which flake, and which a change reaches."""

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


class MissedFailure(Record):
    """A recorded failure that the change of its commit did not select."""

    commit: str
    test: str
    file: str
    """In which the test lies, in the commit."""


class CiBackTest(Record):
    """What selecting tests by the change of each commit (to its first parent) would have found of the failures
    on record. A failure is a test on a commit, however often it failed there."""

    failures: NonNegativeInt
    selected: NonNegativeInt
    """Those among them whose test the change reaches."""
    low: NonNegativeFloat | None
    """Wilson's 95% interval of the share selected, as if failures were independent. Null without failures."""
    high: NonNegativeFloat | None
    missed: tuple[MissedFailure, ...]
    commits: NonNegativeInt
    """With such failures."""
    selected_share: NonNegativeFloat | None
    """Mean share of the test files that is selected on these commits. To select all finds every failure."""
    left_out: dict[str, int]
    """Why failures were not asked of -> how many."""


class CiChanged(Record):
    """The tests that the files changed since a commit reach."""

    since: str
    """The commit's hash."""
    files: tuple[str, ...]
    """Changed, new and deleted since then, in the working tree, too; paths from the repository's top folder."""
    tests: tuple[str, ...]
    """Files of tests that use one of them, at any remove."""
    test_files: NonNegativeInt
    """How many there are in all."""
    reach_all: tuple[str, ...]
    """Changed settings and lists of what is installed, which reach every test."""
    unreached_files: tuple[str, ...]
    """Changed files that no test uses."""
    unknown: dict[str, str]
    """File -> what cannot be known of it, and what was taken instead."""
    back_test: CiBackTest | None
    """Null without results."""


class CiReport(Record):
    """What runs of CI on record say."""

    wall_s: NonNegativeFloat | None
    """The median run's; a run takes as long as its longest file. A file that does not say it takes as long as
    its tests, one after another. Null where no results were given, as with `changed` alone."""
    runs: NonNegativeInt
    commits: NonNegativeInt
    """Known ones."""
    tests: NonNegativeInt
    spans: CiSpans
    floor_s: NonNegativeFloat | None
    """The longest test (median over runs): no number of machines is quicker."""
    floor_test: str | None
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
    changed: CiChanged | None = None
    """Null where it was not asked for."""
