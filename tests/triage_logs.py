"""Made-up logs of failed jobs of many tools, whose failing line and class are known.

Names, numbers, clocks, prefixes, noise, teardown and survived errors vary with the seed. Written after the rules of the
line finder were frozen.
"""
# ruff: noqa: E501  (lines of logs are as long as tools write them)

import random
from typing import NamedTuple

from assay.records.symptoms import SymptomClass

WORDS = (
    "alder",
    "birch",
    "cedar",
    "dogwood",
    "elm",
    "fir",
    "ginkgo",
    "hazel",
    "ivy",
    "juniper",
    "larch",
    "maple",
    "oak",
)


class Failure(NamedTuple):
    """Lines that a tool writes when it fails; `>` begins the line that names the failure."""

    symptom_class: SymptomClass
    text: str
    is_ci: bool = True


F = Failure
FAILURES = (
    F("program", """=================================== FAILURES ===================================
>_______________________________ test_{a}_{b} _______________________________

    def test_{a}_{b}():
E       assert {n} == {m}

tests/test_{a}.py:{n}: AssertionError
=========================== short test summary info ============================
FAILED tests/test_{a}.py::test_{a}_{b} - assert {n} == {m}
========================= 1 failed, {n} passed in {m}.31s ========================="""),
    F("program", """======================================================================
>FAIL: test_{a} (tests.{b}.{C}Test.test_{a})
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/w/tests/{b}.py", line {n}, in test_{a}
    self.assertEqual({n}, {m})
AssertionError: {n} != {m}

----------------------------------------------------------------------
Ran {n} tests in 0.{m}s

FAILED (failures=1)"""),
    F("program", """[ RUN      ] {A}.{B}
>/w/test/{a}_test.cc:{n}: Failure
Expected equality of these values:
  {a}.size()
    Which is: {n}
  {m}
[  FAILED  ] {A}.{B} (3 ms)
[----------] 3 tests from {A} (5 ms total)
[  FAILED  ] 1 test, listed below:
[  FAILED  ] {A}.{B}
 1 FAILED TEST"""),
    F("program", """FAIL src/{a}.test.ts
>  ● {A} › returns {b}

    expect(received).toBe(expected) // Object.is equality

    Expected: {n}
    Received: {m}

      at Object.<anonymous> (src/{a}.test.ts:{n}:{m})

Test Suites: 1 failed, {n} passed, {m} total
Tests:       1 failed, {n} passed, {m} total"""),
    F("program", """--- FAIL: Test{A} (0.00s)
>    {a}_test.go:{n}: got {n}, want {m}
FAIL
FAIL\tgithub.com/{a}/{b}\t0.{n}s
FAIL"""),
    F("program", """test {a}::{b} ... FAILED

failures:

---- {a}::{b} stdout ----

>thread '{a}::{b}' panicked at src/{a}.rs:{n}:5:
assertion `left == right` failed
  left: {n}
 right: {m}
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

test result: FAILED. {n} passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
error: test failed, to rerun pass `--lib`"""),
    F("program", """>error[E0308]: mismatched types
  --> src/{a}.rs:{n}:{m}
   |
{n} |     {a}({b})
   |         ^ expected `u32`, found `&str`

error: could not compile `{b}` (lib) due to 1 previous error"""),
    F("program", """[{n}/{m}] Building CXX object {a}/CMakeFiles/{a}.dir/{b}.cc.o
FAILED: {a}/CMakeFiles/{a}.dir/{b}.cc.o
/usr/bin/c++ -DX -I/w/include -O2 -c /w/{a}/{b}.cc
>/w/{a}/{b}.cc:{n}:{m}: error: '{c}' was not declared in this scope
   {n} |   {c}(1);
      |   ^~~~
ninja: build stopped: subcommand failed."""),
    F("program", """>src/{a}.ts({n},{m}): error TS2322: Type 'string' is not assignable to type 'number'.
npm ERR! Lifecycle script `build` failed with error:
npm ERR! code 2"""),
    F("program", """>{a}/{b}.py:{n}: error: Incompatible return value type (got "int", expected "str")  [return-value]
Found 1 error in 1 file (checked {n} source files)"""),
    F("environment", """/usr/bin/ld: CMakeFiles/{a}.dir/{b}.cc.o: in function `main':
>{b}.cc:(.text+0x{n}): undefined reference to `{a}::{c}(int)'
collect2: error: ld returned 1 exit status
make[2]: *** [CMakeFiles/{a}.dir/build.make:{n}: {a}] Error 1
make: *** [Makefile:{m}: all] Error 2"""),
    F("environment", """>CMake Error at CMakeLists.txt:{n} (find_package):
  Could not find a package configuration file provided by "{A}" with any of
  the following names:

    {A}Config.cmake

-- Configuring incomplete, errors occurred!"""),
    F("environment", """Collecting {a}=={n}.0
>ERROR: Could not find a version that satisfies the requirement {a}=={n}.0 (from versions: 0.1, 0.2)
ERROR: No matching distribution found for {a}=={n}.0"""),
    F("environment", """Reading package lists...
Building dependency tree...
>E: Unable to locate package lib{a}-dev"""),
    F("environment", """>npm error code ERESOLVE
npm error ERESOLVE unable to resolve dependency tree
npm error
npm error While resolving: {a}@1.0.{n}
npm error A complete log of this run can be found in: /home/u/.npm/_logs/{n}.log"""),
    F("program", """>ERROR: /w/{a}/BUILD:{n}:11: Compiling {a}/{b}.cc failed: (Exit 1): gcc failed: error executing CppCompile command
{a}/{b}.cc:{n}:{m}: error: expected ';' before '}}' token
Target //{a}:{b} failed to build
Use --verbose_failures to see the command lines of failed build steps.
ERROR: Build did NOT complete successfully"""),
    F("environment", """> Task :{a}:compile FAILED

FAILURE: Build failed with an exception.

* What went wrong:
>Could not resolve all files for configuration ':{a}:compileClasspath'.
   Could not find com.{a}:{b}:{n}.0.
BUILD FAILED in {n}s"""),
    F("program", """[INFO] --- compiler:3.11.0:compile (default-compile) @ {a} ---
>[ERROR] /w/src/main/java/{A}.java:[{n},{m}] cannot find symbol
[ERROR]   symbol:   class {B}
[INFO] BUILD FAILURE
[ERROR] Failed to execute goal org.apache.maven.plugins:maven-compiler-plugin:3.11.0:compile on project {a}"""),
    F("network", """#{n} [4/7] RUN curl -fsSL https://{a}.example/{b}.sh
>#{n} 3.1{m} curl: (6) Could not resolve host: {a}.example
#{n} ERROR: process "/bin/sh -c curl -fsSL https://{a}.example/{b}.sh" did not complete successfully: exit code: 6"""),
    F("missing_file", """>Error: Cannot find module './{a}/{b}'
Require stack:
- /w/{c}.js
    at Module._resolveFilename (node:internal/modules/cjs/loader:{n}:15)
    at Module._load (node:internal/modules/cjs/loader:{m}:27)
Node.js v20.11.0"""),
    F("program", """Traceback (most recent call last):
  File "/w/{a}.py", line {n}, in <module>
    main()
  File "/w/{a}.py", line {m}, in main
    return {b}[{c}]
>KeyError: '{c}'""", False),
    F("device_memory", """Traceback (most recent call last):
  File "/w/{a}.py", line {n}, in step
    loss.backward()
>torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n}.00 MiB. GPU 0 has a total capacity of 79.10 GiB""", False),
    F("storage", """Traceback (most recent call last):
  File "/w/{a}.py", line {n}, in save
    file.write(block)
>OSError: [Errno 28] No space left on device: '/scratch/{b}/{n}.bin'""", False),
    F("network", """Traceback (most recent call last):
  File "/w/{a}.py", line {n}, in fetch
    socket.connect(address)
>ConnectionRefusedError: [Errno 111] Connection refused""", False),
    F("device_error", """terminate called after throwing an instance of 'c10::Error'
>  what():  CUDA error: an illegal memory access was encountered
Exception raised from c10_cuda_check_implementation at CUDAException.cpp:{n} (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x{n} (0x7f94 in libc10.so)
Fatal Python error: Aborted""", False),
    F("crash", """Fatal Python error: Segmentation fault

Thread 0x00007f{n} (most recent call first):
  File "/w/{a}.py", line {n} in forward
>/var/spool/job{n}/slurm_script: line {m}: {n}{m} Segmentation fault      (core dumped) python {a}.py""", False),
    F("not_finite", """[{a}] step {n} loss nan
Traceback (most recent call last):
  File "/w/{a}.py", line {n}, in check
    raise FloatingPointError("loss is nan")
>FloatingPointError: loss is nan at step {n}""", False),
    F("permission", """Traceback (most recent call last):
  File "/w/{a}.py", line {n}, in open_store
    return client.get(key)
>botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation: Access Denied""", False),
    F("data", """Traceback (most recent call last):
  File "/w/{a}.py", line {n}, in rows
    yield json.loads(line)
>json.decoder.JSONDecodeError: Expecting value: line {n} column {m} (char {n})""", False),
    F("host_memory", """>slurmstepd: error: Detected 1 oom_kill event in StepId={n}.0. Some tasks have been OOM Killed.
srun: error: node-{n}: task 0: Out Of Memory""", False),
    F("preempted", """>slurmstepd: error: *** JOB {n} ON node-{m} CANCELLED AT 2026-03-01T10:00:00 DUE TO PREEMPTION ***
Traceback (most recent call last):
  File "/w/{a}.py", line {n}, in get
RuntimeError: DataLoader worker (pid {n}) is killed by signal: Terminated.""", False),
    F("collective", """>[rank{m}]:[E301 10:10:00.1 ProcessGroupNCCL.cpp:607] [Rank {m}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.
[rank{m}]:[E301 10:10:00.2 ProcessGroupNCCL.cpp:1664] To avoid data inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [Rank {m}] Process group watchdog thread terminated with exception: [Rank {m}] Watchdog caught collective operation timeout
Fatal Python error: Aborted""", False),
    F("missing_file", """Traceback (most recent call last):
  File "/w/{a}.py", line {n}, in load
    return open(path)
>FileNotFoundError: [Errno 2] No such file or directory: '/data/{a}/{b}-{n}.parquet'""", False),
    F("environment", """Traceback (most recent call last):
  File "/w/{a}.py", line {n}, in <module>
    import {b}
>ModuleNotFoundError: No module named '{b}'""", False),
)  # fmt: skip
"""CI's tools, and programs on a cluster."""
SURVIVED = (
    "WARNING: failed to load {a} plugin, using the default",
    "ConnectionError: {a}:80{m} refused, retrying in {m} s",
    "E: {a}.list is configured multiple times, ignoring",
    "+ rm -f {a}.err || true",
    "Downloading {a}-errors-{n}.tar.gz",
)
NOISE_CI = ("-- Found {A}: /usr/lib/lib{a}.so", "Get:{n} http://deb.{a}.org stable/main {b} {n} kB", "ok  {a}/{b} 0.{n}s",
            "tests/test_{a}.py::test_{b} PASSED", "[{n}/{m}] Building C object {a}.o", "0 errors, 0 warnings in {a}")  # fmt: skip
NOISE_RUN = ("step {n} loss 2.{m} lr 0.0003", "loaded shard {n} of {m} from {a}", "epoch {m}: {n} samples/s",
             "saved checkpoint {n} in {m} s, 0 errors")  # fmt: skip
TEARDOWN_CI = ("##[error]Process completed with exit code 1.", "ERROR: Job failed: exit code 1",
               "The command \"make {a}\" exited with 2.", "script returned exit code 1")  # fmt: skip
AFTER_CI = (
    "Post job cleanup.",
    "Uploading artifacts: {a}.xml: no matching files. Error: not found",
    "Cleaning up orphan processes",
)
TEARDOWN_RUN = ("srun: error: node-{n}: task {m}: Exited with exit code 1", "wandb: Waiting for W&B process to finish... (failed 1).",
                "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")  # fmt: skip
CLOCKS = ("", "2026-03-01T10:{0:02d}:{1:02d}.1234567Z ", "[2026-03-01 10:{0:02d}:{1:02d},123] ", "Mar  1 10:{0:02d}:{1:02d} ",
          "10:{0:02d}:{1:02d} ", "2026/03/01 10:{0:02d}:{1:02d} ", "17724{0:03d}{1:02d}.12 ", "[{0:>5d}.{1:06d}] ")  # fmt: skip


class SimulatedLog(NamedTuple):
    """A log, and what a reader would name."""

    text: str
    line: int
    """From 1."""
    symptom_class: SymptomClass


def random_log(seed: int) -> SimulatedLog:
    """Return the log of one failure among noise; each seed has another clock, prefix and order."""
    rng = random.Random(seed)
    failure = FAILURES[seed % len(FAILURES)]
    noise, teardown = (NOISE_CI, TEARDOWN_CI) if failure.is_ci else (NOISE_RUN, TEARDOWN_RUN)

    def filled(text: str) -> str:
        a, b, c = rng.sample(WORDS, 3)
        numbers = {"n": rng.randint(10, 99), "m": rng.randint(1, 9)}
        return text.format(a=a, b=b, c=c, A=a.title(), B=b.title(), C=c.title(), **numbers)

    before = [filled(rng.choice(noise)) for _ in range(rng.randint(5, 120))]
    for _ in range(rng.randint(0, 3)):
        before.insert(rng.randrange(len(before)), filled(rng.choice(SURVIVED)))
    after = [filled(rng.choice(teardown))]
    after += [filled(text) for text in AFTER_CI if rng.random() < 0.5] if failure.is_ci else []
    body = filled(failure.text).split("\n")
    clock, rank = rng.choice(CLOCKS), rng.choice(("", "", "[rank3]: ", "3: ")) if not failure.is_ci else ""
    is_coloured, has_bars = rng.random() < 0.3, rng.random() < 0.3
    lines, marked = list[str](), 0
    for kind, part in (("noise", before), ("body", body), ("noise", after)):
        for text in part:
            if kind == "body" and text.startswith(">"):
                text, marked = text[1:], len(lines) + 1
            if is_coloured and "rror" in text:
                text = f"\x1b[31m{text}\x1b[0m"
            prefix = rank if kind == "body" and not text.startswith(("[rank", "slurmstepd", "srun", "/var")) else ""
            bar = f"\r 10%|# | {len(lines)}/99\r 99%|##########|\r" if has_bars and kind == "noise" else ""
            lines.append(f"{bar}{clock.format(len(lines) // 60, len(lines) % 60)}{prefix}{text}")
    if rng.random() < 0.2:
        return SimulatedLog("\r\n".join(lines), marked, failure.symptom_class)
    return SimulatedLog("\n".join(lines) + "\n", marked, failure.symptom_class)
