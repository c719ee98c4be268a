"""Classifies a line that names a failure, by ordered rules; the first match decides.

The order matters if classes share words: device memory before host memory, a missing library before a missing
file, a rejected login before a network failure. The rules know the terms of the field (Linux, CUDA, NCCL,
gloo, Slurm, Python), not of any project.
"""

import re

from assay.records.symptoms import SymptomClass


def _rule(symptom_class: SymptomClass, *patterns: str) -> tuple[SymptomClass, re.Pattern[str]]:
    return symptom_class, re.compile("|".join(patterns), re.IGNORECASE)


RULES = (
    _rule(
        "preempted",
        r"due to (?:preemption|time limit|node fail)|\bpreempted\b|preemption notice|keyboardinterrupt|\bevicted\b",
        r"spot (?:instance )?(?:interruption|termination)|shutdown signal|\*\*\* (?:job|step) \S+.* cancelled",
        r"(?:operation|job|task|run|workflow) was cancell?ed|node is (?:being )?(?:drained|shut)|deadlineexceeded",
        r"exceeded (?:its )?(?:time|deadline|walltime)|job (?:exceeded|hit) (?:the )?time",
    ),
    _rule(
        "device_memory",
        r"(?:cuda|hip|gpu|xpu|mps|npu|device)\S* (?:error: )?out of memory|(?:cuda|hip)_?error_?out_?of_?memory",
        r"torch\S*outofmemoryerror|(?:cublas|cudnn|cusolver)_status_alloc_failed|resource_exhausted",
        r"failed to allocate .*(?:\bgpu|device|hbm|cuda)|tried to allocate .*(?:gpu|hbm|device)",
        r"mps backend out of memory|no available memory for the cache blocks|not enough (?:gpu|device) memory",
    ),
    _rule(
        "host_memory",
        r"\boom[-_ ]?kill|out of memory: kill|\boomkilled\b|memory cgroup out of memory|exceeded memory limit",
        r"cannot allocate memory|can't allocate memory|std::bad_alloc|memoryerror\b|\benomem\b|errno 12\b",
        r"unable to allocate .* for an array|insufficient shared memory|out of shared memory|java heap space",
        r"dataloader worker .* (?:killed by signal: (?:killed|bus)|exited unexpectedly)|out of memory",
        r"/dev/shm.*(?:full|space)",
    ),
    _rule(
        "not_finite",
        r"non-?finite|not finite|floatingpointerror|infs or nans|contains? nan|returned nan values",
        r"\b(?:loss|grad\w*|norm|logits?|weights?|activations?|outputs?|values?|probability tensor)\b.*"
        r"\b(?:nan|infs?|-inf|infinite)\b",
        r"\b(?:nan|inf|nans|infs)\b.*\b(?:loss|grad\w*|norm|logits?|weights?|activations?|tensor|values?|step)\b",
        r"loss (?:is|was|became|=|:)\s*(?:nan|inf)|minimum loss scale|loss scale already at minimum",
    ),
    _rule(
        "environment",
        r"no kernel image|driver version is insufficient|not compiled with|driver on your system is too old",
    ),
    _rule(
        "device_error",
        r"\bxid\b|uncorrectable|\becc\b.*error|error.*\becc\b|fallen off the bus|nvlink.*(?:error|fail|down)",
        r"row remap|illegal memory access|unspecified launch failure|device-side assert|misaligned address",
        r"illegal instruction was encountered|\b(?:cuda|hip|cudnn|cublas|cufft|cusolver)\w* ?(?:error|failure)",
        r"(?:cublas|cudnn)_status_(?!alloc)|no cuda-capable device|gpu is lost|no cuda gpus are available",
        r"unable to determine the device handle|hw exception by gpu|hardware error|machine check|mce: ",
        r"nvidia-smi has failed|cuda initiali[sz]ation",
    ),
    _rule(
        "hang",
        r"\bhang(?:s|ing)?\b|\bhung\b|deadlock|soft lockup|blocked for more than \d+ sec|no heartbeat",
        r"no progress (?:for|in|since)|heartbeat (?:timed out|timeout|lost|missed)|stuck (?:for|in|at)",
        r"\bstalled\b|watchdog.*(?:stuck|no progress)",
    ),
    _rule(
        "collective",
        r"\b(?:nccl|rccl|hccl)\w*\b.*(?:error|fail|time|abort|warn|unhandled|invalid|mismatch)",
        r"(?:error|fail|time|abort|unhandled)\w*.*\b(?:nccl|rccl|hccl)\w*|nccl(?:unhandled|system|internal|remote)",
        r"processgroup\w*|collectives?\b.*(?:time|fail|abort|mismatch|error)|mismatch between collectives",
        r"distbackenderror|\bgloo\b|all_?(?:reduce|gather|to_?all)\b.*(?:time|fail|mismatch|error)",
        r"(?:time|fail|mismatch|error).*\ball_?(?:reduce|gather|to_?all)\b|\bbarrier\b.*time|monitoredbarrier",
        r"mpi_abort|pmix|ranks? (?:failed|did not)|\bucx\b|ibv_|infiniband|\bibverbs\b",
    ),
    _rule(
        "crash",
        r"segmentation fault|segfault|\bsig(?:segv|abrt|bus|fpe|ill|kill)\b|bus error|core dumped|fatal python error",
        r"\w+sanitizer: |\S:\d+: \S.*: assertion [`'\"].*failed",
        r"terminate called|double free|stack smashing|corrupted size|heap corruption|stack overflow",
        r"illegal instruction|access violation|killed by signal|\bsignal (?:6|7|8|9|11)\b",
        r"exit(?:ed)?(?: with)?[ _]?(?:code|status)?\s*[:=]? ?(?:-[1-9]|-1\d|13[24579])\b|kernel panic",
        r"^\S*:? ?(?:line )?\d*:?\s*\d* killed\b",
    ),
    _rule(
        "storage",
        r"no space left|disk quota|quota exceeded|input/output error|stale (?:nfs )?file handle",
        r"read-only file system|errno (?:5|28|30|107|116|122)\b|disk (?:is )?full|enospc|edquot|\bestale\b|\beio\b",
        r"file ?system.*(?:full|error|corrupt)|transport endpoint is not connected|slowdown|nosuchbucket",
        r"(?:nfs|lustre|gpfs|ceph|beegfs|ext4|xfs)\b.*(?:error|time|not responding)|pytorchstream(?:writer|reader)",
        r"failed finding central directory|checkpoint.*(?:corrupt|incomplete|truncated)|write (?:error|failed)",
        r"unable to write",
    ),
    _rule(
        "environment",
        r"modulenotfounderror|no module named|cannot import name|importerror|undefined symbol|symbol lookup error",
        r"dll load failed|cannot open shared object|version [`'\"]?glibc|glibcxx|command not found",
        r"no matching distribution|could not find a version|resolutionimpossible|version conflict|abi mismatch",
        r"requires? (?:python|torch|cuda|a newer)|incompatible (?:version|with)|executable file not found",
        r"exec format error|is not installed|packagenotfound|unsatisfiable|library not found|undefined reference",
        r"not recognized as (?:an internal|the name)|too many open files|emfile|failed building wheel",
        r"failed to build|environment variable .* (?:not set|missing|required)|no such option|unsupported python",
        r"contextualversionconflict|distributionnotfound|exit(?:ed)?(?: with)?(?: code| status)?:? ?127\b",
        r"unable to (?:resolve dependency|locate package)|eresolve|no solution found|version solving failed",
        r"could not resolve all (?:files|dependencies)|package configuration file",
        r"could not find \w+ \((?:missing|found version)|unsupported gpu arch",
        r"\bcmake error\b.*\((?:find_package|project)\)",
    ),
    _rule(
        "permission",
        r"permission ?denied|access ?denied|permissionerror|\beacces\b|operation not permitted|not authori[sz]ed",
        r"unauthori[sz]ed|\bforbidden\b|\b(?:http|status|code|error)\D{0,12}40[13]\b|credential|gated ?repo",
        r"\b40[13] (?:client|unauthori|forbidden)|authentication (?:failed|required)|errno 13?\b",
        r"invalid (?:api )?(?:token|key)|expired ?token|token has expired",
    ),
    _rule(
        "missing_file",
        r"no such file|filenotfounderror|file not found|path not found|nosuchkey|does not exist|doesn't exist",
        r"not a directory|manifest unknown|\benoent\b|errno 2\b|\b(?:http|status|code|error)\D{0,12}404\b",
        r"\b404 (?:client|not found)|cannot (?:find (?!symbol)|(?:open|stat|access) )|could not (?:find|open)",
        r"missing file|no rule to make target",
        r"is not a (?:local folder|file|directory)|entry ?not ?found|repository ?not ?found",
    ),
    _rule(
        "network",
        r"connection (?:refused|reset|aborted|closed|timed out|error)|connect(?:ion)? ?time(?:d )?out|broken pipe",
        r"connectionerror|connectionre\w+|no route to host|network is (?:unreachable|down)|name resolution",
        r"could not (?:resolve|connect)|name or service not known|getaddrinfo|\bdns\b|max retries exceeded|\bssl\w*",
        r"certificate|tls handshake|errno (?:101|104|110|111|113)\b|econn\w+|etimedout|ehostunreach",
        r"\b50[0234] (?:server|bad gateway|service|gateway|internal)",
        r"\b(?:http|status|code)\D{0,12}(?:50[0234]|429)\b|too many requests|rate limit|bad gateway",
        r"service unavailable|gateway time|read ?timeout|i/o timeout|remotedisconnected|(?:client|server) socket",
        r"socket (?:error|time|closed|hang)|rendezvous\w*|unreachable|failed to (?:download|fetch|connect|pull)",
        r"error (?:sending request|while fetching)|distnetworkerror|download.*(?:timed out|failed)|proxyerror",
        r"incomplete ?read|host is down",
    ),
    _rule(
        "data",
        r"jsondecodeerror|unicode(?:de|en)codeerror|arrow\w*(?:invalid|error)|\bparquet\b|parsererror|casterror",
        r"dataset\w*(?:generation|cast|error)|unpicklingerror|bad ?zip|badgzip|corrupt|truncated|malformed|checksum",
        r"\bcrc\b|bad magic|invalid (?:json|utf|utf-8|start byte|header|literal|record)|schema|tfrecord|dataloss",
        r"expected \d+ (?:columns|fields)|extra data|unterminated string|empty (?:dataset|file|batch)",
        r"(?:column|field|feature)s?\b.*(?:missing|not found|not in|mismatch)|(?:missing|unknown) (?:column|field)",
        r"could not convert|(?:cannot|unable to|failed to|could not) parse|parse error",
        r"cannot identify image|safetensor\w*error|token(?:s|izer| id)?.*(?:out of (?:range|vocab)|mismatch)",
        r"digest .* (?:differs|the manifest says)|duplicate (?:row|key)|row group|shard.*(?:digest|differ)",
    ),
    _rule("hang", r"timed? ?out after \d|took longer than \d|time-?out \(?>"),
)


def class_of(text: str) -> SymptomClass | None:
    """Return the class of the first matching rule, or None."""
    return next((symptom_class for symptom_class, pattern in RULES if pattern.search(text)), None)
