"""`dsrun plan --deepspeed FILE`: the user's own DeepSpeed JSON instead of --zero, --offload and --precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsrun.findings.finding import errors_in
from dsrun.findings.show import refusal
from dsrun.recipe.deepspeed_file import as_object, read_text
from dsrun.zero.lint.config_check import check
from dsrun.zero.memory.own_config import with_deepspeed
from dsrun.zero.memory.plan_request import PlanRequest


def with_file(request: PlanRequest, given: dict[str, Any]) -> PlanRequest:
    """The request as the JSON has it, once the linter finds no error in that."""
    file = given["deepspeed"]
    text = read_text(Path(file).expanduser(), file)
    if errors := errors_in(check(text, file=file, world_size=request.cluster.world)):
        raise refusal(errors, before="--deepspeed: ")
    flags = {f"--{name.replace('_', '-')}": given[name] for name in ("offload", "micro_batch_size", "optim")}
    flags |= {"--zero": request.stage, "--global-batch-size": request.global_batch}
    flags["--precision"] = None if given["precision"] == "auto" else given["precision"]
    return with_deepspeed(request, as_object(text, file), file, given=flags)
