"""`dsrun config`: write a DeepSpeed configuration, list the shipped ones, explain every key."""

from dataclasses import replace
from typing import Any

import click

from dsrun.cli.output import json_text, write_output
from dsrun.engine_options import OPTIMIZER_ONLY, offloaded_to
from dsrun.errors import UsageError
from dsrun.zero.generate.blocks import HardwareFacts
from dsrun.zero.generate.config import PURPOSES, generate, render_json
from dsrun.zero.generate.explain import as_json, as_text, explain, notices
from dsrun.zero.generate.spec import ZeroSpec, flag_of, options

BY_ITSELF = ("list_shipped", "explain", "form", "output", "force")


def _as_train_has_them(values: dict[str, Any], ctx: click.Context) -> None:
    """Turn the flags that `dsrun train` has for it into those of the spec. Raises UsageError where both differ."""
    stage = options()["stage"].default if values["stage"] is None else values["stage"]
    place = values.pop("offload")
    moved = ("offload_optimizer", *(["offload_param"] if stage == 3 and place != OPTIMIZER_ONLY else []))
    meant: dict[str, str] = {name: offloaded_to(place) for name in moved if place}
    given = [name for name in ("bf16", "fp16") if values.pop(name)]
    meant |= dict.fromkeys(["precision"] if given else [], given[-1] if given else "")
    if len(given) > 1:
        raise UsageError("--bf16 and --fp16 exclude each other", fix="remove one of them")
    for name, value in meant.items():
        source = f"--{given[0]}" if name == "precision" else f"--offload {place}"
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT and values[name] != value:
            raise UsageError(f"{source} and {flag_of(name)} {values[name]} differ", fix="remove one of them")
        values[name] = value


def run(**values: Any) -> int:
    """Write what the options ask for; the callback of `dsrun config`."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand:
        return 0
    _as_train_has_them(values, ctx)
    own = {name: values.pop(name) for name in BY_ITSELF}
    if own["list_shipped"]:
        files = [{"file": name, "does": line} for name, line in PURPOSES.items()]
        width = max(map(len, PURPOSES))
        lines = (f"{name:<{width}}  {line.replace('`', '')}\n" for name, line in PURPOSES.items())
        text = json_text({"files": files}) if own["form"] == "json" else "".join(lines)
    else:
        # click gives None for what was not given, also where the default is empty.
        given: dict[str, Any] = {
            name: options()[name].default if value is None else value for name, value in values.items()
        }
        spec = _with_batch(ZeroSpec(**given))
        facts = HardwareFacts()
        if spec.model is not None or spec.gpu is not None:
            from dsrun.cli.config.facts import find_facts  # shapes of models and the table of GPUs

            facts = find_facts(spec)
        if own["explain"]:
            text = (as_json if own["form"] == "json" else as_text)(explain(spec, facts)) + "\n"
        else:
            text = render_json(generate(spec, facts=facts))
        for line in notices(spec, facts):
            from dsrun.system.terminal.stderr import print_note  # most configurations need none

            print_note(line)
    write_output(text, own["output"], force=own["force"])
    return 0


def _with_batch(spec: ZeroSpec) -> ZeroSpec:
    """The spec with all three batch sizes, if it names the GPUs and is for DeepSpeed alone."""
    shared = spec.autotp * spec.sequence_parallel
    ranks = (spec.gpus or 0) // shared if shared > 0 else 0
    if spec.target != "deepspeed" or ranks == 0:
        return spec
    from dsrun.recipe.batch import batch_plan  # and the flags of training, for the fewest configurations

    given = {name: getattr(spec, name) for name in ("global_batch_size", "micro_batch_size", "accumulation")}
    plan = batch_plan(**given, world_size=ranks, default_micro=1)
    return replace(
        spec, global_batch_size=plan.global_batch, micro_batch_size=plan.micro_batch, accumulation=plan.accumulation
    )
