"""Removes counts of zero failures: `0 errors`, `failures=0`, `"error_count": 0`.

They are removed before a line is scored, so that the rest of it still counts: `1 failed, 0 errors`, or `rank
0 failed`, in which 0 is not a count.
"""

import re

_COUNTED = (
    r"(?:(?:fatal|critical|error|failure|exception|warning|crash|timeout|mismatch|conflict|violation|problem|abort"
    r"|panic|regression|nan|inf)(?:e?s|\(s\))?|fail(?:ed|s|ing)?|timed[ -]?out|invalid|missing|rejected|aborted"
    r"|killed|crashed|corrupt(?:ed)?|cancell?ed|lost|denied|refused|unknown|unexpected|interrupted|exceeded|broken"
    r"|stalled|unreachable)"
)
_OF = (
    r"(?:(?:of|out of) [\d,]+ |/ ?[\d,]+ )?(?:(?:new|test|build|lint|type"
    r"|syntax|compiler?|compilation|data|fatal"
    r"|critical|assertion|import|validation|parse|total|unit)[ -])?"
    r"(?:(?:tests?|examples?|rows?|records?|files?|jobs?|tasks?|steps?|suites?|checks?|items?|cases?|assertions?"
    r"|requests?"
    r"|messages?|documents?|batches|targets?|packages?|modules?|were|have|has|are|is) ){0,2}"
)
_BEFORE = (
    r"(?:^|[,;(\[{|/]\s*|(?<!rank)(?<!task)(?<!node)(?<!gpu)(?<!device)(?<!worker)(?<!process)"
    r"[:.=]\s+|[-–—]\s+"
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
    r"(?:[_ -]?(?:tests?|rows?|records?|files?|jobs?|tasks?|steps?|items?|cases?|count"
    r"|total|rate|code|lines?))?"
    r"[\"']?"
    r"(?:\s*=\s*[\"']?(?:0(?:\.0+)?%?|none|null|nil|false)(?![\w.%])"
    r"|(?:\s*[:|]\s*|\s+)[\"']?(?:0(?:\.0+)?%?|none|null|nil|false)(?![\w%]|\.\w)"
    r"(?=[\"']?\s*(?:$|[,;|)\]}(]|\.(?:\s|$)|[-–—]\s|(?:in|and)\b|[\"'\w-]+(?: \w+)?\s*[:=])))",
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
    while True:
        left = _NUMBER_LAST.sub(" ", _NUMBER_FIRST.sub(lambda found: found["before"], line))
        if left == line:
            return left
        line = left
