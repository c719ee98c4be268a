"""Removes counts of zero failures: `0 errors`, `failures=0`, `"error_count": 0`.

They are removed before a line is scored, so that the rest of it still counts: `1 failed, 0 errors`, or `rank
0 failed`, in which 0 is not a count.
"""

import re
from typing import NamedTuple

_COUNTED = (
    r"(?:(?:fatal|critical|error|failure|exception|warning|crash|timeout|mismatch|conflict|violation|problem|abort"
    r"|panic|regression|nan|inf)(?:e?s|\(s\))?|fail(?:ed|s|ing)?|timed[ -]?out|invalid|missing|rejected|aborted"
    r"|killed|crashed|corrupt(?:ed)?|cancell?ed|lost|denied|refused|unknown|unexpected|interrupted|exceeded|broken"
    r"|stalled|unreachable)"
)
_OF = (
    r"(?:(?:of|out of) [\d,]+ |/ ?[\d,]+ )?(?:(?:new|test|build|lint|type|syntax|compiler?|compilation|data|fatal"
    r"|critical|assertion|import|validation|parse|total|unit)[ -])?(?:(?:tests?|examples?|rows?|records?|files?|jobs?"
    r"|tasks?|steps?|suites?|checks?|items?|cases?|assertions?|requests?|messages?|documents?|batches|targets?"
    r"|packages?|modules?|were|have|has|are|is) ){0,2}"
)
_BEFORE = (
    r"(?:^|[,;(\[{|/]\s*|(?<!rank)(?<!task)(?<!node)(?<!gpu)(?<!device)(?<!worker)(?<!process)[:.=]\s+|[-–—]\s+"
    r"|\b(?:with|found|had|has|have|and|or|were|was|are|is|there|reported|encountered|generated|produced|got|saw"
    r"|finished|completed|done|passed|succeeded|ok|skipped|ignored|errors|warnings|failures|failed|passing)\s+)"
)
_NUMBER_FIRST = re.compile(
    rf"(?P<before>{_BEFORE})(?:(?:0|zero)(?: |(?=/)){_OF}{_COUNTED}(?!\w)"
    rf"|(?:no|without(?: any)?) (?:\w+ )?{_COUNTED}(?=\s*$|\s*[.,;:!)|]|\s+(?:were|was|found|occurred|reported"
    r"|detected|in|during|and|or|to)\b))",
    re.IGNORECASE,
)
_NUMBER_LAST = re.compile(
    rf"(?<![\w])(?:(?:[a-z]+[_ -])?(?:num|number of|n|total|count)?[_ -]?)?{_COUNTED}"
    r"(?:[_ -]?(?:tests?|rows?|records?|files?|jobs?|tasks?|steps?|items?|cases?|count|total|rate|code"
    r"|lines?))?[\"']?(?:\s*=\s*[\"']?(?:0(?:\.0+)?%?|none|null|nil|false)(?![\w.%])|(?:\s*[:|]\s*"
    r"|\s+)[\"']?(?:0(?:\.0+)?%?|none|null|nil|false)(?![\w%]|\.\w)(?=[\"']?\s*(?:$|[,;|)\]}(]|\.(?:\s|$)|[-–—]\s"
    r"|(?:in|and)\b|[\"'\w-]+(?: \w+)?\s*[:=])))",
    re.IGNORECASE,
)
_WORD = re.compile(r"\b(?:no|zero|without|none|null|nil|false)\b", re.IGNORECASE)
COUNT_ABOVE_ZERO = re.compile(
    r"(?<![\w.])[1-9][\d,]*(?: ?/ ?[\d,]+)? (?:\w+ )?(?:errors?|failures?|failing)\b"
    r"|(?:errors?|failures?|fail(?:ed)?)(?:[_ -]?(?:\w+))?[\"']?\s*[:=|]\s*[\"']?[1-9]",
    re.IGNORECASE,
)
"""Matches a count of failures, which does not name them."""


def without_zero_counts(line: str) -> str:
    """Return the line without its counts of zero failures."""
    if "0" not in line and not _WORD.search(line):
        return line
    while (left := _NUMBER_LAST.sub(" ", _NUMBER_FIRST.sub(lambda found: found["before"], line))) != line:
        line = left
    return line


_DATE = (
    r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/.](?:\d\d|[A-Z][a-z]{2})[-/.]\d{4}|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d)"
)
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?(?: \d{4})?(?:Z| ?[+-]\d\d:?\d\d)?"
STAMP = re.compile(
    rf"\ufeff?\[?(?:{_DATE}[T ,:]{{1,2}}{_TIME}|{_TIME}|\d{{10}}\.\d+|[ \d]{{1,6}}\.\d{{6}})\]?(?:\s*[-|:])?\s?"
    r"|std(?:out|err) [FP] "
    r"|(?:ERROR|CRITICAL|E\d{4})\b[^\]]{0,99}\]\s(?=Traceback \(|  |[\w.]+(?:Error|Exception)\b)"
)
"""ISO 8601, other dates, the clock alone, seconds since the epoch or since boot; the stream in logs of
containers; what a logger writes before the lines of a traceback."""
COLOURS = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9])")
SPEAKER = re.compile(
    r"(?:\[(?:rank|default|gpu|worker|node)?[ _-]?\d+(?:,\d+)?\](?:<std(?:err|out)>)?:?\s?|rank ?\d+:\s?"
    r"|\d{1,5}: |#\d+ (?:\d+\.\d+ )?|[\w.-]+-\d+ +\| |\[[\w.-]+(?:/[\w.-]+)+\] "
    r"|remote: {1,3}|(?:[^\t]+\t){2}(?=\ufeff?\d{4}-)|\((?:\w+ )?(?:pid|rank)=[^)]*\)\s?)",
    re.IGNORECASE,
)
"""Prefixes of a rank's lines by torchrun, srun, mpirun, Ray, Compose and kubectl; of a step's in container builds, in
GitHub's logs of jobs, and in what a server answers a push."""

TROUBLE = tuple(
    b"error,exception,fail,fatal,traceback,panic,abort,kill,crash,could not,couldn't,cannot,can't,"
    b"unable,denied,refused,timed,timeout,time-out,out of,no such,not found,unknown,invalid,unexpected,"
    b"cancel,shutdown,preempt,evict,conflict,mismatch,missing,interrupt,corrupt,hang,hung,deadlock,"
    b"stuck,lockup,exited,nan,inf,finite,exceed,limit,signal,oom,xid,uncorrect,dumped,regress,violat,"
    b"____,!!!,double free,smashing,terminate called,bad_alloc,stall,lost,undefined,critical,severe,"
    b"quota,no space,stale,fault,what():,err!,low on resource,no solution,not ok,unresolved,multiple definition,"
    b"duplicate symbol,went wrong,no rule,retry,assertion,\xe2\x97\x8f,\xe2\x9c,\xc3\x97,"
    b"no module,no required,no route,no match,nothing provides,unsupported,not recogn,notfound,overflow,nccl warn,"
    b"was terminated,terminated abrupt,node_fail,deadline,not responding,blocked for more,rate limit".split(b",")
)
"""Lower-case substrings, one of which every line with a strength contains; a fast filter."""

EXCEPTION = re.compile(
    r"^(?:E\s+|\w+: |(?:Caused by|Uncaught|Unhandled \w+|Exception in thread \"[^\"]*\"):? ?)?"
    r"((?:[\w$]+\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Failure|Fault|Abort"
    r"|Expired|Exhausted|NotFound|Unavailable))\b(?:\s*\[\w+\])?(?=\s*:|\s*$)|^what\(\):\s+\S"
)
DOTTED = re.compile(r"^(?:E\s+)?(?:[a-z_]\w*\.)+[A-Za-z_]\w*(?=:\s)")
"""An exception whose name does not end like one: `socket.gaierror: ...`."""
SPECIFIC = re.compile(
    r"out of memory|no space left|oom[-_]?kill|segmentation fault|bus error|illegal memory access|device-side assert"
    r"|\bxid\b|preempted|\bevicted\b|due to (?:preemption|time limit)|shutdown signal|operation was cancell?ed"
    r"|fatal python error|uncorrectable|fallen off the bus|kernel panic|\bhung\b|soft lockup|disk quota"
    r"|stale file handle|(?:watchdog|collective).*time|double free|stack smashing|no cuda gpus"
    r"|loss (?:is|was|became) (?:nan|inf)|low on resource|\bassertion\b.*\bfailed|\w+sanitizer: "
    r"|(?:interruption|preemption) notice",
    re.IGNORECASE,
)
ABORTED = re.compile(
    r"terminate called|fatal python error: abort|\bsigabrt\b|\bsignal 6\b|\baborted\b\s*\(core dumped\)"
    r"|\babort(?:ed|ing)\W*$|^\W*core dumped\W*$",
    re.IGNORECASE,
)
"""How a process ended after something else went wrong: it names a failure only if nothing else does."""
LOCATED = re.compile(
    r"(?:^|\s)\S+(?::\d+(?::\d+)?|\(\d+(?:,\d+)?\)|:\[\d+,\d+\])(?:\s*:|\s+-|(?<=\]))\s*(?:fatal )?(?:error|failure)\b"
    r"|^\s+\d+:\d+\s+error\s|^(?:\S*[/\\])?(?:[\w-]*-)?(?:ld|lld|gold|link|wasm-ld)(?:\.\w+)?\s?: "
    r"(?!.* returned \d|.*: in function)",
    re.IGNORECASE,
)
"""A diagnostic with its place in a source, of a compiler, a checker or a test framework; or of a linker."""
TEST = re.compile(
    r"^FAILED \S+::|^(?:--- )?FAIL:? \S|^not ok \d|\bFAIL(?:ED)?\s*:\s*\S|^!{3,} .+ !{3,}$"
    r"|^[A-Z]{4,}(?: [A-Z]{4,}){1,4}: \S|^\[ +FAILED +\] \S+\.|\*\*\*\s?(?:Failed|Exception|Timeout|Not Run)"
    r"|\.{3,} ?FAIL(?:ED)?\b|^[●✕✗✘×❌]\s+\S"
)
LEVEL = re.compile(
    r"(?:^|[\s\]\[)(\"'|])(?:fatal error|error|fatal|panic|critical|severe|alert|emerg)\w?(?:\s*[A-Z]{0,4}\d+"
    r"|\[\w+\])?\]?\s*(?:[:!|]|-\s)|^error\b|^fatal\b|^\w+ (?:error|err!)(?:\s|$)|panicked at|\berror response\b"
    r"|\"level\"\s*:\s*\"(?:error|fatal|critical)|^\w+ fatal\s+:|^[EF]\d{4} |\berror\]|^E: \S",
    re.IGNORECASE,
)
TOOL = re.compile(r"^[\w./+-]{1,40}: (?:line \d+: )?(?=\S)")
"""`program: message`, as programs report what stops them."""
WORDS = re.compile(
    r"\b(?:failed to|failure|fail(?:ed|s)?|could not|couldn't|cannot|can't|unable to|not found|no such|denied|refused"
    r"|undefined|unresolved|multiple definition|duplicate symbol|no solution|no rule|timed? ?out|unknown|invalid"
    r"|unexpected|abort(?:ed|ing)?|killed|crash(?:ed)?|cancell?ed|conflict|mismatch|missing|regression|violation"
    r"|interrupted|no module named|no required|not recogni[sz]ed|no route|no match|nothing provides|unsupported"
    r"|overflowed|nccl warn|was terminated|node_fail|deadline|not responding|blocked for more|rate limit"
    r"|error|exception|nan|inf|corrupt(?:ed)?|lost|exceed(?:ed|s)|exited|stalled|hang)\b",
    re.IGNORECASE,
)
COUNTED = 3.6
"""Strength of a count of failures, which names none."""
STATUS = re.compile(
    r"exit(?:ed|s|ing)?(?: with)?(?: code| status)|^systemexit: \d|process completed|failed[!.]?$"
    r"|^\W*\d+ (?:failed|errors?|passed)\b"
    r"|closing signal|childfailed|task \d+: |\bwandb: |\(failed \d+\)|srun: error|elastic\.multiprocessing"
    r"|\*\*\* step \S+.* cancelled(?!.*due to)|task was cancel|could not compile|previous errors?\b|errors occurred"
    r"|error \d+( \(ignored\))?$|build (?:stopped|failed)|did not complete|returned \d+ exit status|job failed"
    r"|[a-z] command failed|tests? failed,|executing the custom|please (?:contact|take)"
    r"|see (?:the )?(?:log|full|above|error)"
    r"|check the (?:log|step)|check (?:failed|for)|if your build fails|likely not a problem"
    r"|for more (?:info|detail)|\bhint\b|\btip\b|complete log of this run|refer to the"
    r"|root cause above|failed \(exitcode: (?:\d|-6\b)|returned an error code"
    r"|^npm \S+ (?:code|errno|syscall|path|cwd|command|node|lifecycle|test failed"
    r"|failed at|exit status|\S+@\S+ \S+:|\S+@\S+$)|^FAILED: \S+$|did not run successfully"
    r"|subprocess-exited|failed building wheel|could not build wheels|failed to build installable|mpi_errors_are_fatal"
    r"|non-zero (?:code|exit)|more undefined references|symbol\(s\) not found|invoked oom-killer"
    r"|^FAIL\s+\S+\.[cm]?[jt]sx?$|there (?:were|are) (?:failing tests|test failures)",
    re.IGNORECASE,
)
"""Exit statuses, summaries and advice: they follow from a failure, and name none."""
TEARDOWN = re.compile(
    r"\bupload(?:ing|ed|s)?\b(?!\.)|artifact|clean(?:ing|ed)?[ -]?up|orphan|post[- ]job|stopping|shutting down"
    r"|terminating|will be (?:killed|terminated)",
    re.IGNORECASE,
)
"""What is done after a failure; a line that names one may also say that the program is stopping."""
STEP_END = re.compile(
    r"^##\[error\]|\berror: job failed|script returned exit code|command .* exited with|cleaning up project dir"
    r"|^post job cleanup|due to (?:preemption|time limit|node fail)|shutdown signal|exited with code '\d",
    re.IGNORECASE,
)
"""The end of a step or job by its runner or scheduler: errors after it are its consequences."""
PEER = re.compile(
    r"connection (?:reset|closed)(?: by)? (?:the )?(?:remote )?peer|broken pipe|communicator (?:was )?aborted"
    r"|aborted on rank|socket was closed|peer (?:has )?(?:closed|disconnected|gone)|closed by (?:the )?peer"
    r"|remote process (?:exited|failed|has)|aborted by (?:peer|rank)|tcpstore.*(?:closed|reset|broken)"
    r"|watchdog.*(?:caught|terminated|timeout)|entire process down",
    re.IGNORECASE,
)
"""Messages of a rank that lost another rank, or waited for it too long: the other one is the cause."""
RETRIED = re.compile(
    r"back(?:ing)? ?off|\bretry(?:ing)?\b(?! count| limit)|will try again|attempt \d+ (?:of|/)|trying again",
    re.IGNORECASE,
)
MILD = re.compile(
    r"\bwarn(?:ing)?s?\b|deprecat|\bnote:|(?<![\\/.\w-])(?:info|debug|trace)\b(?![\\/.])|during handling"
    r"|direct cause of|0 errors|no errors?\b|errors?=0|failed=0|returned non-zero|compilation log"
    r"|ignor(?:ed|ing)|expected fail|xfail|skipp(?:ed|ing)|\berror rate|--\S*(?:error|fail)",
    re.IGNORECASE,
)
ECHO = re.compile(
    r"^\s*(?:\+{1,4} |\$ |echo |##\[(?:group|command|endgroup|debug|section)\]|\[command\])"
    r"|^\s+[A-Za-z_]\w*: \S+$|^[a-z-]+: \d+$"
)
SHELL_COLOUR = "\x1b[36;1m"
"""Colour in which GitHub's runner prints the script before running it."""

MASKS = (
    (re.compile(r"https?://\S+"), "<url>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<address>"), (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b"), "<host>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.+@~-]+){2,}[\\/]?"), "<path>"),
    (re.compile(r"\b[0-9a-f]{12,}\b"), "<digest>"), (re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"), "<n>"),
)  # fmt: skip
KEY_CHARACTERS = 200
LOCATION = re.compile(r"(?P<file>\S+?)(?::\d+|\(\d+)(?:[:,]\d+)?\)?(?:\s*:|\s+-)\s")
QUOTED = re.compile(r"(?P<mark>['\"`])[^'\"`]*(?P=mark)")


class WeightedLine(NamedTuple):
    """A line that may name a failure."""

    strength: float
    """0 to 10."""
    number: int
    text: str
    speaker: str = ""
    """Prefix of its rank."""
    is_peer: bool = False
    """A rank that lost another rank."""
    is_put_away: bool = False
    """A message of the tear-down."""
    cause: str = ""
    """The error that it wraps, or the one that it is the heading of."""


KINDS = (
    (ABORTED, 3.0), (SPECIFIC, 8.0), (LOCATED, 7.0), (EXCEPTION, 6.8), (LEVEL, 6.0), (TEST, 6.0), (DOTTED, 5.5),
    (WORDS, 4.0), (COUNT_ABOVE_ZERO, COUNTED),
)  # fmt: skip
"""Kinds of lines and their strengths; the first that matches counts."""


def speaks_of_trouble(raw: bytes) -> bool:
    """Return quickly whether a line may have a strength."""
    small = raw.lower()
    return any(word in small for word in TROUBLE)


def plain(raw: str) -> tuple[str, str]:
    """Return (prefix of the rank or empty, text) without time stamps, colours and line end."""
    text, speaker = raw.rstrip("\r\n"), ""
    if "\x1b" in text:
        text = COLOURS.sub("", text)
    for _ in range(3):  # a collector's stamp, the rank, and the program's own stamp
        if stamp := STAMP.match(text):
            text = text[stamp.end() :]
        if found := SPEAKER.match(text):
            text, speaker = text[found.end() :], speaker or found.group().strip()
        elif not stamp:
            break
    return speaker, text


def is_echo(raw: str, text: str) -> bool:
    """Return whether a shell only echoes a script or its environment."""
    return SHELL_COLOUR in raw or ECHO.match(text) is not None


def weigh(text: str, number: int, *, speaker: str, ends_traceback: bool) -> WeightedLine | None:
    """Return the strength of a plain line; None if it does not indicate a failure."""
    line = text.strip()
    kind = 8.0 if ends_traceback else strength_of(line)
    if kind and not ends_traceback:
        kind = strength_of(without_zero_counts(line))
    if not kind:
        return None
    strength = kind
    is_exception = ends_traceback or EXCEPTION.match(line) is not None
    is_peer = PEER.search(line) is not None
    is_put_away = STATUS.search(line) is not None or (kind <= 6.0 and TEARDOWN.search(line) is not None)
    if is_put_away:
        strength -= 3.5
    if is_peer:
        strength -= 2.5
    if RETRIED.search(line):
        strength -= 3.0
    if MILD.search(line):
        strength -= 1.5 if is_exception else 3.0
    is_heading = line[0] == ">" or TEST.search(line) is not None
    if text[:1].isspace() and not (is_exception or is_heading or LOCATED.search(text)):
        strength -= 1.0
    return WeightedLine(max(strength, 0.1), number, line, speaker, is_peer, is_put_away)


def strength_of(line: str) -> float:
    """Return the strength of a line's kind; 0 if it has none."""
    for kind, strength in KINDS:
        if kind.search(line):
            return strength + (TOOL.match(line) is not None) * (kind is WORDS)
    return 0.0


def concern_the_same(text: str, other: str) -> bool:
    """Return whether two errors concern the same file, if both name one, or else are different messages."""
    locations = LOCATION.match(text), LOCATION.match(other)
    if locations[0] and locations[1]:
        return locations[0]["file"] == locations[1]["file"]
    return QUOTED.sub("", key_of(text)) != QUOTED.sub("", key_of(other))


def key_of(text: str) -> str:
    """Return the line with variable parts masked, as a key of equal lines."""
    for pattern, name in MASKS:
        text = pattern.sub(name, text)
    return text[:KEY_CHARACTERS]
