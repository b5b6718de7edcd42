"""From a request to the rows of its checks: build small, train, look.

A crash or a hang in a fork of this process, which has done the imports, is told, and harms nobody."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from transformers.dynamic_module_utils import init_hf_modules

from dsrun.certify.checks import CHECK_FACTS
from dsrun.certify.request import CertifyRequest
from dsrun.errors import DsrunError, ToolError, one_line
from dsrun.findings.checks import Check, CheckResult
from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.system.process.process_end import die_with_parent, end
from dsrun.train.certify import rank  # noqa: F401  what the forks need is imported here
from dsrun.train.certify.look import CHECKS
from dsrun.train.certify.runs import RUNS, planned, train_all
from dsrun.train.certify.subject import CertifySubject, SmallRun, load_subject

LOG = "certify.log"


def certify(request: CertifyRequest, scratch: Path, *, notify: Callable[[str], None]) -> dict[str, Any]:
    """The task, the device, and the rows in their order, as JSON values.

    Raises DsrunError where there is no such model, or no small one can be built of it."""
    log = scratch / LOG
    if request.trust_remote_code:
        init_hf_modules()  # from where the model's own config class comes out of the fork
    notify("building a small model of its architecture")

    def program() -> CertifySubject | DsrunError:
        try:
            return load_subject(request, scratch)
        except DsrunError as error:  # what the user is to read
            return error

    try:
        subject = in_fork(program, limit_s=request.limit_s, log=log)
    except ForkFailedError as failed:
        error = failed.values.get("error", f"it did not end within {request.limit_s:g} s")
        raise ToolError(f"no small model of {request.model} could be built: {error}") from None
    if isinstance(subject, DsrunError):
        raise subject
    subject = replace(subject, runs=train_all(planned(subject, scratch), scratch, request, notify=notify))
    rows = []
    blamed: set[str] = set()
    checks = [each for each in CHECKS if not request.only or each.code in request.only]
    for number, check in enumerate(checks, 1):
        notify(f"checking {number}/{len(checks)}: {check.title}")
        result = _result(check, subject, blamed, log)
        flags = [_avoiding(check, each) for each in result.findings if each.level == "error"]
        rows.append({**result.as_dict(), "avoid": list(filter(None, flags))})
    return {"task": subject.task, "device": "cuda" if request.gpus else "cpu", "checks": rows}


def _result(check: Check, subject: CertifySubject, blamed: set[str], log: Path) -> CheckResult:
    """What a check finds, in a fork. An error of a run that it needs is its finding, which stands once."""
    began = monotonic()
    needed = [subject.runs[name] for name in CHECK_FACTS[check.code].get("runs", ()) if name in subject.runs]
    failed = {run.error: run for run in reversed(needed) if run.error}
    findings: tuple[Finding, ...]
    if failed:
        findings = tuple(_failed(check, run, subject, told=error in blamed) for error, run in failed.items())
        blamed.update(failed)
    else:
        try:
            findings = in_fork(lambda: tuple(check.look(subject)), limit_s=subject.request.limit_s, log=log)
        except ForkFailedError as error:
            findings = (check.broken(error.how, **error.values),)
    mended = tuple(_with_mend(check, each, subject.request) for each in findings)
    return CheckResult(check=check, findings=mended, seconds=round(monotonic() - began, 2))


def _failed(check: Check, run: SmallRun, subject: CertifySubject, *, told: bool) -> Finding:
    if told:
        return finding_of("run_open", prefix=f"{check.code}_", run=run.says)
    error = run.error.replace(str(subject.small), "the small model")  # whose folder is gone when this is read
    return finding_of("run_failed", prefix=f"{check.code}_", where=run.name, run=run.says, error=error)


def _avoiding(check: Check, found: Finding) -> str:
    """The flags that avoid an error: of the run that it was found in, else of the check; "" where none are known."""
    of_run = RUNS.get(found.where, {}).get("avoid")
    return str(of_run or CHECK_FACTS[check.code].get("avoid", ""))


def _with_mend(check: Check, found: Finding, request: CertifyRequest) -> Finding:
    """An error that has no fix of its own has the flags that avoid it, or says that none are known. What did not end in
    time may have had too little of it."""
    if found.code.endswith("_hangs"):
        return replace(found, fix=text_of("certified.longer", seconds=f"{3 * request.limit_s:g}"))
    if found.level != "error" or found.fix:
        return found
    return replace(found, fix=_avoiding(check, found) or text_of("certified.unknown"))


class ForkFailedError(Exception):
    """A fork gave no result: `how` is "crashed" or "hangs", with what the texts of these want to know."""

    def __init__(self, how: str, **values: Any) -> None:
        super().__init__(how, values)
        self.how, self.values = how, values


def in_fork(program: Callable[[], Any], *, limit_s: float, log: Path) -> Any:
    """What `program` returns in a fork; what it prints goes to the end of `log`. Raises ForkFailedError where it
    raises, dies, or does not end within `limit_s`."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(program, theirs, log, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            raise ForkFailedError("hangs", seconds=limit_s)
        error, result = ours.recv()
    except EOFError:
        process.join()
        raise ForkFailedError("crashed", kind="signal", error=str(-(process.exitcode or 0))) from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if error:
        raise ForkFailedError("crashed", kind=error[0], error=error[1])
    return result


def _child(program: Callable[[], Any], answers: Any, log: Path, parent: int) -> None:
    die_with_parent(parent, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    try:
        answers.send((None, program()))
    except BaseException as error:
        traceback.print_exc()
        answers.send(((type(error).__name__, one_line(error)), None))
    finally:
        end(0)
