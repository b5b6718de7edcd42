"""Process 1 of a container: `dsrun` is often the only program there, and the kernel expects more of the first one."""

import os
import signal

from dsrun.system.process.process_end import name_thread

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# <asm-generic/siginfo.h>: a terminal's Ctrl-C, for one, which reaches all processes of its group.
_SI_KERNEL = 0x80


def leave_init_behind() -> None:
    """Go on in a child of this process, which is process 1.

    This one stays as an init: it forwards signals to that child, waits for orphans, and ends with the child's exit
    code, 128 + n for signal n. To process 1 itself the kernel delivers no signal that has no handler, and it makes
    every orphan its child, which stays a zombie until it is waited for. A process that has children of its own to wait
    for cannot do that: it would take the exit codes that subprocess looks for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody learns an exit code
    awaited = (*FORWARDED, signal.SIGCHLD)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    name_thread("dsrun-init")
    while (code := _wait_for_ended(child)) is None:
        received = signal.sigwaitinfo(awaited)
        if received.si_signo != signal.SIGCHLD and received.si_code != _SI_KERNEL:
            os.kill(child, received.si_signo)  # not waited for yet, so it exists
    os._exit(code)


def _wait_for_ended(child: int) -> int | None:
    """Wait for all children that have ended; the exit code of `child` if it is one of them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in (0, child):
            break
    code = os.waitstatus_to_exitcode(status)
    return None if pid == 0 else 128 - code if code < 0 else code
