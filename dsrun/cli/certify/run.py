"""What `dsrun certify` does: it has the checks run by a process that imports torch, keeps the verdict and shows it."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dsrun import __version__
from dsrun.certify.checks import CHECK_FACTS
from dsrun.certify.request import CertifyRequest
from dsrun.certify.verdict import record, verdict_of
from dsrun.cli.output import print_json, print_line, refuse_file, write_file
from dsrun.demo.build_demo import materialise
from dsrun.demo.models import TASKS
from dsrun.errors import EXIT_FINDINGS, MissingError, ToolError, UsageError, did_you_mean
from dsrun.findings.checks import result_lines, summary
from dsrun.findings.translation import translated
from dsrun.machine.gpus import visible_gpus
from dsrun.models.folder import find
from dsrun.system.files import parse_json
from dsrun.system.host import own_programs_first, require_training_packages
from dsrun.system.process.proc import run_foreground
from dsrun.system.process.scratch import scratch_folder
from dsrun.system.terminal.display import terminal_width
from dsrun.system.terminal.stderr import print_note
from dsrun.system.variables import cache_root

PROGRAM = "dsrun.train.certify"
_SHARED = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
"""Of all its processes, whose models are too small for threads."""
_WITHOUT_GPU = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
_MOST_STEPS = 60
"""More than there are checks and runs. The program keeps to the limit of each by itself."""


def run(*, model: str, zero: str, gpus: int | None, limit: float, only: Sequence[str], **given: Any) -> int:
    """The callback of `dsrun certify`."""
    require_training_packages()
    chosen = tuple(name.strip() for each in only for name in each.split(","))
    for name in chosen:
        if name not in CHECK_FACTS:
            raise UsageError(f"--only {name}: there is no such check", fix=did_you_mean(name, [*CHECK_FACTS]))
    page, force = given.pop("output"), given.pop("force")
    if page:
        refuse_file(Path(page), "-o", force=force)
    form, every = given.pop("form"), given.pop("every")
    place = str(materialise(model, cache_root() / "demo" / model).model) if model in TASKS else model
    found = find(place, weights=False)
    request = CertifyRequest(model=place, stages=_stages(zero), gpus=_gpus(gpus), limit_s=limit, only=chosen, **given)
    answer = _ask(request)
    if isinstance(answer, int):
        return answer
    verdict = verdict_of(found.config, request, answer | {"model": model, "folder": str(found.folder.resolve())})
    try:
        if not chosen:
            record(verdict)
    except OSError as error:
        print_note(f"the verdict cannot be kept, and `dsrun train` will not know it: {error}")
    if form == "json":
        print_json(verdict.as_dict())
    else:
        for line in result_lines(verdict.results, every=every, columns=terminal_width(sys.stdout)):
            click.echo(line)
        if not chosen:
            print_line(translated(verdict.sentence))
    if page:
        from dsrun.report.page import page_template  # jinja2

        names = {"verdict": verdict, "only": chosen, "facts": CHECK_FACTS, "by": __version__}
        text = page_template("certify.html.j2").render(names, total=summary(verdict.results, every=True))
        write_file(Path(page), text.lstrip().encode("utf-8", "backslashreplace"), force=force)
    return EXIT_FINDINGS if verdict.failed else 0


def _stages(text: str) -> tuple[int, ...]:
    stages = {each.strip() for each in text.split(",")}
    if not stages <= {"0", "1", "2", "3"}:
        raise UsageError(f"--zero {text}: these are not ZeRO stages", fix="write some of 0, 1, 2 and 3: --zero 0,2,3")
    return tuple(sorted(map(int, stages)))


def _gpus(wanted: int | None) -> int:
    """How many GPUs to train on: two at most, where that is not said."""
    there = 0 if wanted == 0 else len(visible_gpus())
    if wanted and wanted > there:
        raise MissingError(f"--gpus {wanted}, but this machine shows {there}", fix="--gpus 0 trains on the CPU")
    return min(there, 2) if wanted is None else wanted


def _ask(request: CertifyRequest) -> dict[str, Any] | int:
    """What the program answers; its exit code where it has said itself what is wrong or missing. Raises ToolError where
    it ends otherwise."""
    os.environ.update(own_programs_first(os.environ) | _SHARED | ({} if request.gpus else _WITHOUT_GPU))
    with scratch_folder("dsrun-certify-") as scratch, tempfile.TemporaryFile() as answer:
        argv = [sys.executable, "-m", PROGRAM, request.as_json(), str(scratch)]
        code = run_foreground(argv, output=answer.fileno(), err=False, limit_s=_MOST_STEPS * request.limit_s)
        for log in sorted(scratch.glob("*.log")) if "--debug" in sys.argv else ():
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
        answer.seek(0)
        try:
            return dict(parse_json(answer.read()))
        except (ValueError, TypeError):
            if code in (ToolError.exit_code, UsageError.exit_code, MissingError.exit_code):
                return code
    raise ToolError(f"python -m {PROGRAM} ended with exit code {code}, without a verdict")
