"""What says that nothing failed is no failure, whichever tool says it; a number above zero is one."""

from pathlib import Path

import pytest

from assay.triage.symptoms.logs import read_log

SUMMARIES = """\
done, {n} errors, {n} failed
{n} failed
{n} errors
{n} warnings {n} errors
Errors: {n}
failures={n}
"error_count": {n}
{{"rows": 40, "errors": {n}, "failed": {n}}}
{{"status": "done", "error_count": {n}, "failed_rows": {n}}}
5 passed, {n} failed in 0.12s
5 passed, {n} errors
===== 12 passed, {n} failed, {n} errors in 3.10s =====
test result: ok. 5 passed; {n} failed; 0 ignored; 0 measured; 0 filtered out
Tests run: 17, Failures: {n}, Errors: {n}, Skipped: 0, Time elapsed: 0.05 s
Tests run: 17, Failures: 0, Errors: {n}, Skipped: 0
Tests:       {n} failed, 5 passed, 5 total
100% tests passed, {n} tests failed out of 5
5 examples, {n} failures
# fail {n}
  {n} failing
OK (skipped=1, failures={n})
<testsuite name="unit" tests="5" failures="{n}" errors="{n}" skipped="0">
Total: 5, Failed: {n}, Passed: 5
Build finished with {n} errors and 3 warnings.
Found {n} errors.
Found {n} errors in 12 source files
compilation finished: {n} errors, {n} warnings
{n} problems ({n} errors, {n} warnings)
Done. PASS=5 WARN=0 ERROR={n} SKIP=0 TOTAL=5
loaded 1,000 rows, {n} rows failed
{n} of 40 files failed
{n}/40 files failed
{n} out of 40 jobs failed
etl: read=1000 written=1000 failed={n} invalid={n}
num_errors={n} num_rows=40
errors | {n}
Number of errors: {n}
total_errors: {n}
total errors: {n} total rows: 40
error rate: {n}%
failed jobs: {n}
host1 : ok=3 changed=0 unreachable={n} failed={n} skipped=0 rescued=0 ignored=0
2026-11-21T03:49:38Z INFO export finished: {n} records failed
Import completed. Errors: {n}. Warnings: {n}.
checks: 12 ok, {n} missing, {n} corrupt
""".splitlines()
NOTHING_FAILED = """\
    0 Error(s)
loaded 1,000 rows, 0 rejected, 0 invalid
no errors
No errors found.
no failures
finished without errors
Completed with no errors or warnings.
errors: none
"error": null, "rows": 40
zero errors
done: no tests failed
error_rate=0.0
error_rate: 0.00%
""".splitlines()
FAILURES = """\
rank 0 failed
worker 0 lost
task: 0 failed
GPU 0: error 31
Error: 0 files found
KeyError: 0
error: 0x7f31 is no address
AssertionError: 0 errors
failed with error code 0
1 failed, 0 errors
10 errors, 0 failed
1,000 errors
build failed: 0 errors, 0 warnings
error: expected 0 arguments, 2 given
cuda:0 failed
no space left on device
no such file: errors.txt
could not connect, 0 errors so far
""".splitlines()


def line_of(tmp_path: Path, line: str) -> int | None:
    (log := tmp_path / "a.log").write_text(f"all good\n{line}\n")
    return read_log(log)[0].line


@pytest.mark.parametrize("line", SUMMARIES)
def test_a_count_of_failures_is_one_where_it_is_above_zero(line: str, tmp_path: Path) -> None:
    assert line_of(tmp_path, line.format(n=0)) is None
    for number in (1, 7, 10, 100, "1,000"):
        if "Failures: 0" not in line or number != "1,000":
            assert line_of(tmp_path, line.format(n=number)) == 2, number


@pytest.mark.parametrize("line", NOTHING_FAILED)
def test_what_says_that_nothing_failed_is_no_failure(line: str, tmp_path: Path) -> None:
    assert line_of(tmp_path, line) is None


@pytest.mark.parametrize("line", FAILURES)
def test_a_zero_that_counts_no_failures_hides_none(line: str, tmp_path: Path) -> None:
    assert line_of(tmp_path, line) == 2
