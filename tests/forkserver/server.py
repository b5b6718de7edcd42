"""`python -m tests.forkserver.server FD MODULE… PADDING`: import the modules once, and fork a process for each request.

A request comes as one message on the socket FD: JSON, and four file descriptors, for stdin, stdout, stderr, and a
socket on which the process id is answered, and later the exit code as subprocess tells it. PADDING makes room for the
command lines that /proc is to show of the forks.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from dsrun.system.process.process_end import die_with_parent, name_thread
from tests.forkserver.child import become

PID = struct.Struct("!i")
END = struct.Struct("!idd")
"""Exit code; CPU seconds of this fork and its children; those of all forks, and of who was left by them, so far."""
_PR_SET_CHILD_SUBREAPER = 36
_MADV_COLLAPSE = 25  # since Linux 6.1; before, it is an error that changes nothing
_HUGE = 2 << 20
LARGEST = 1 << 20


def main(fd: int, modules: Sequence[str]) -> None:
    """Serve until the tests close the socket."""
    requests = socket.socket(fileno=fd)
    die_with_parent(os.getppid(), signal.SIGKILL)
    # Ctrl-C is for the tests, and for what they start.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for module in modules:
        import_module(module)
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    name_thread("forkserver")
    # torch would deregister thousands of operators at the end of each fork.
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    # Collections in the forks would otherwise write to, and so copy, every page of what was imported.
    gc.collect()
    gc.freeze()
    _use_huge_pages()
    _serve(requests)


def _serve(requests: socket.socket) -> None:
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    for each in (requests, woken):
        selector.register(each, selectors.EVENT_READ)
    answers: dict[int, socket.socket] = {}
    # A run leaves ranks to whoever takes them, when its supervisor has killed them: here they are waited for.
    _become_subreaper()
    while True:
        for key, _ in selector.select():
            if key.fileobj is woken:
                woken.recv(4096)
                _reap(answers)
                continue
            message, fds, _, _ = socket.recv_fds(requests, LARGEST, 4)
            if not message:
                return
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                become(json.loads(message), fds[:3], parent)
            for fd in fds[:3]:
                os.close(fd)
            answers[pid] = socket.socket(fileno=fds[3])
            _answer(answers[pid], PID.pack(pid))


def _reap(answers: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (found := os.wait4(-1, os.WNOHANG))[0]:
            pid, status, used = found
            if answer := answers.pop(pid, None):
                own, all_ = _seconds(used), _seconds(resource.getrusage(resource.RUSAGE_CHILDREN))
                _answer(answer, END.pack(os.waitstatus_to_exitcode(status), own, all_))
                answer.close()


def _seconds(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


def _become_subreaper() -> None:
    """Processes whose parent has ended become children of this one, see prctl(2)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _use_huge_pages() -> None:
    """Gather this process's memory in pages of 2 MiB, as far as it goes: a fork then takes a quarter of the time."""
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, _, _, inode, *_ = line.split()
        start, end = (int(each, 16) for each in span.split("-"))
        if rights.startswith("rw") and inode == "0":
            for page in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                madvise(ctypes.c_void_p(page), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)


def _answer(channel: socket.socket, message: bytes) -> None:
    with suppress(OSError):  # nobody waits for it
        channel.sendall(message)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:-1])
