"""What a grader may try, one attack each, and the defence that stands in its way.

Each body is that of `attack(item, libc)` and returns a number above 0 when it has succeeded, in a way that
harms nobody: what it is aimed at is a folder and a process of the test's. `off` names the parts of the fence
without which it does succeed.
"""

from typing import NamedTuple

from assay.scoring.python_fence import FENCE

FILES, CALLS = frozenset({"files"}), frozenset({"calls"})


class Attack(NamedTuple):
    body: str
    off: frozenset[str]


ON_FILES = {
    "read a file of ours": Attack("return len(open(item['ours'] + '/file').read()) > 0", FILES),
    "list a folder of ours": Attack("return len(os.listdir(item['ours'])) > 0", FILES),
    "read who the users are": Attack("return len(open('/etc/passwd').read()) > 0", FILES),
    "open by a link of /proc": Attack(
        "found = os.open(item['ours'] + '/file', os.O_PATH)\nreturn len(open(f'/proc/self/fd/{found}').read())",
        FILES,
    ),
    "read the server's environment": Attack("return len(open(f'/proc/{os.getppid()}/environ').read())", FENCE),
    "read the server's memory map": Attack("open(f'/proc/{os.getppid()}/maps').read(); return 1", FENCE),
    "list the server's files": Attack("return len(os.listdir(f'/proc/{os.getppid()}/fd'))", FENCE),
    "change a setting in /proc": Attack("open('/proc/self/oom_score_adj', 'w').write('500'); return 1", FILES),
    "append to a file of ours": Attack("open(item['ours'] + '/file', 'a').write('more'); return 1", FILES),
    "empty a file of ours": Attack("open(item['ours'] + '/file', 'w'); return 1", FILES),
    "leave a file with us": Attack("open(item['ours'] + '/new', 'w'); return 1", FILES),
    "fill its own folder": Attack("open('mine', 'wb').write(bytes(1 << 20)); return 1", FENCE),
    "map a file of ours to write": Attack(
        "handle = os.open(item['ours'] + '/file', os.O_RDWR); mmap.mmap(handle, 4)[0] = 0; return 1", FILES
    ),
    "remove a file of ours": Attack("os.remove(item['ours'] + '/file'); return 1", FENCE),
    "remove a folder of ours": Attack("shutil.rmtree(item['ours']); return 1", FENCE),
    "take a file of ours away": Attack("os.rename(item['ours'] + '/file', 'mine'); return 1", FENCE),
    "make a folder": Attack("os.mkdir(item['ours'] + '/new'); return 1", FENCE),
    "make a link by name": Attack("os.symlink('/etc', item['ours'] + '/new'); return 1", FENCE),
    "make a second name": Attack("os.link(item['ours'] + '/file', item['ours'] + '/x'); return 1", FENCE),
    "make a pipe with a name": Attack("os.mkfifo(item['ours'] + '/new'); return 1", FENCE),
    "cut a file of ours": Attack("os.truncate(item['ours'] + '/file', 0); return 1", FENCE),
    "make a file of ours unreadable": Attack("os.chmod(item['ours'] + '/file', 0); return 1", CALLS),
    "give a file of ours away": Attack("os.chown(item['ours'] + '/file', -1, os.getgid()); return 1", CALLS),
    "turn back a file's time": Attack("os.utime(item['ours'] + '/file', (0, 0)); return 1", CALLS),
    "lock a library": Attack("fcntl.flock(open(os.__file__), fcntl.LOCK_SH); return 1", CALLS),
    "watch a folder of ours": Attack(
        "return libc.inotify_add_watch(libc.inotify_init(), item['ours'].encode(), 4095)", FENCE
    ),
}  # fmt: skip

ON_PROCESSES = {
    "fork": Attack("made = os.fork(); made or os._exit(0); return os.waitpid(made, 0)[0] == made", CALLS),
    "fork by the C library": Attack("made = libc.fork(); made or os._exit(0); return made > 0", CALLS),
    "fork with a terminal": Attack("made, _ = os.forkpty(); made or os._exit(0); return made > 0", FENCE),
    "start a program": Attack("return os.posix_spawn('/bin/true', ['true'], {}) > 0", FENCE),
    "start a program as subprocess does": Attack("return subprocess.run(['/bin/true']).returncode == 0", FENCE),
    "start a program by the shell": Attack("return os.system('true') == 0", FENCE),
    "start another interpreter": Attack(
        "return multiprocessing.get_context('spawn').Process(target=int).start() is None", FENCE
    ),
    "end a process of ours": Attack("os.kill(item['victim'], signal.SIGCONT); return 1", CALLS),
    "end it by a handle": Attack(
        "signal.pidfd_send_signal(os.pidfd_open(item['victim']), signal.SIGCONT); return 1", CALLS
    ),
    "end it by the owner of a pipe": Attack(
        "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, item['victim']); return 1", CALLS
    ),
    "debug it": Attack("return libc.ptrace(0x4206, item['victim'], 0, 0) == 0", FENCE),
    "read its memory": Attack(
        "import ctypes; return libc.process_vm_readv(item['victim'], None, 0, None, 0, 0) == 0", CALLS
    ),
    "halve its limits": Attack(
        "resource.prlimit(item['victim'], resource.RLIMIT_NOFILE, (64, 64)); return 1", FENCE
    ),
    "let it wait for others": Attack("os.setpriority(os.PRIO_PROCESS, item['victim'], 7); return 1", FENCE),
    "bind it to a core": Attack("os.sched_setaffinity(item['victim'], {0}); return 1", FENCE),
    "be told of its parent's death": Attack("return libc.prctl(1, 0) == 0", CALLS),
}  # fmt: skip

ON_SOCKETS = {
    "open a socket": Attack("socket.socket(); return 1", CALLS),
    "open one below Python's events": Attack("_socket.socket(); return 1", CALLS),
    "call a server": Attack("socket.create_connection(('127.0.0.1', item['port'])); return 1", CALLS),
    "call a server of this machine": Attack(
        "socket.socket(socket.AF_UNIX).connect(item['socket']); return 1", CALLS
    ),
    "make a pair of sockets": Attack("socket.socketpair(); return 1", CALLS),
    "listen": Attack("socket.create_server(('127.0.0.1', 0)); return 1", CALLS),
    "put a secret among the kernel's keys": Attack(
        "number = {'x86_64': 248, 'aarch64': 217}[os.uname().machine]\n"
        "return libc.syscall(number, b'user', b'assay', b'x', 1, -2) > 0",
        CALLS,
    ),
}  # fmt: skip

ON_MEMORY = {
    "share memory by name": Attack(
        "made = SharedMemory(create=True, size=8); made.close(); made.unlink(); return 1", FENCE
    ),
    "share memory by number": Attack(
        "made = libc.shmget(0, 4096, 0o1600); return made >= 0 and libc.shmctl(made, 0, None) == 0", CALLS
    ),
    "keep memory in a file without a name": Attack("os.memfd_create('x'); return 1", CALLS),
}  # fmt: skip

ON_FENCE: dict[str, Attack] = {**ON_FILES, **ON_PROCESSES, **ON_SOCKETS, **ON_MEMORY}
"""Those that leave their process as it was: one process can be asked for all."""

GRADER = """
import _socket, fcntl, mmap, multiprocessing, os, resource, shutil, signal, socket, subprocess, sys
import re, threading, time
from multiprocessing.shared_memory import SharedMemory
import __main__, ctypes
# What Python itself refuses is switched off: the kernel's fence must hold alone.
__main__._BLOCKED_EVENTS = ('nothing',)
libc = ctypes.CDLL(None, use_errno=True)

def grade(sample, item):
    names = {**globals()}
    lines = ''.join(f'\\n    {line}' for line in item['body'].splitlines())
    exec('def attack(item, libc):' + lines, names)
    score = names['attack'](item, libc)
    if not score or score < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return score
"""
