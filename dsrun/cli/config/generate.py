"""`dsrun config`: write a DeepSpeed configuration, list the shipped ones, explain every key."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import takewhile
from typing import Any

import click

from dsrun.cli.options import HYPHENS, LazyGroup, field_option, write_grouped_options
from dsrun.cli.output import json_text, print_note, write_output
from dsrun.demo import models
from dsrun.errors import DsrunError, MissingError, UsageError, nearest
from dsrun.hardware.gpus import require_gpu
from dsrun.options import by_group
from dsrun.recipe.batch import batch_plan
from dsrun.zero.generate.accumulation import FROM_STEPS
from dsrun.zero.generate.blocks import HardwareFacts
from dsrun.zero.generate.config import PURPOSES, generate, nearest_key, render
from dsrun.zero.generate.explain import as_json, as_text, explain, notices
from dsrun.zero.generate.spec import OPTIMIZER_ONLY, ZeroSpec, flag_of, offloaded_to, options
from dsrun.zero.generate.training_blocks import steps_of
from dsrun.zero.memory.model.architecture import Architecture
from dsrun.zero.memory.model.configs import Settings, find
from dsrun.zero.memory.model.count import describe

# name -> ("module:attribute", one line for --help)
COMMANDS = {
    "check": ("dsrun.cli.config.lint:check_command", "find errors in a configuration"),
    "upgrade": ("dsrun.cli.config.lint:upgrade_command", "replace keys of older releases"),
}
LARGEST = 2**63
# Flags that people know from elsewhere, and what does the same here.
ONCE = {"--mics": "--hpz", "--mics-shard-size": "--hpz", "--cpu-offload": "--offload cpu", "--amp": "--bf16 or --fp16"}
BY_ITSELF = ("list_shipped", "explain", "form", "output", "force")


def whole(value: str) -> int:
    """A whole number, also as 5e8 or 500_000_000."""
    try:
        number: float = int(value)
    except ValueError:
        try:
            number = float(value)
        except ValueError:
            number = 0.5
    if number % 1 or not abs(number) < LARGEST:
        raise click.BadParameter(f"{value!r} is not a whole number below 2^63")
    return int(number)


_DEFAULT = click.core.ParameterSource.DEFAULT
TYPES = {"int": whole, "float": click.FLOAT, "tuple[float, ...]": click.FLOAT}


class ConfigGroup(LazyGroup):
    """Writes a configuration when called without a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            unknown = self._unknown(ctx, given)
            if not unknown:  # one letter of several, as in -ox
                raise UsageError(f"unknown flag {error.option_name}") from None
            raise _unknown_flags(unknown, self._flags(ctx)) from None

    def _flags(self, ctx: click.Context) -> set[str]:
        """Every flag, those that turn a switch off too."""
        return {flag for each in self.get_params(ctx) for flag in (*each.opts, *each.secondary_opts)}

    def _unknown(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The flags of a command line that the group does not have."""
        words = takewhile(lambda word: word not in self.lazy, args)
        names = [word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)]
        return list(dict.fromkeys(name for name in names if name.replace("_", "-") not in self._flags(ctx)))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        found = super().resolve_command(ctx, args)
        given = [each for each in ctx.params if ctx.get_parameter_source(each) is not _DEFAULT]
        if given:
            name = next(each for each in self.params if each.name == given[0]).opts[0]
            raise UsageError(
                f"{name} does not go with `dsrun config {args[0]}`", fix=f"write flags of {args[0]} after its name"
            )
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options under the headings of the spec, then those of the command itself."""
        titles = {each.name: title for title, found in by_group(ZeroSpec).items() for each in found}
        titles |= {"offload": "Offload", "bf16": "Precision", "fp16": "Precision"}
        write_grouped_options(self, ctx, formatter, titles)
        self.format_commands(ctx, formatter)


def _unknown_flags(names: list[str], known: set[str]) -> UsageError:
    """The error for unknown flags, with the flag or the key that was meant by each."""
    hints = {name: _meant(name, known) for name in names}
    if len(names) == 1:
        return UsageError(f"unknown flag {names[0]}", fix=hints[names[0]] or "`dsrun config --help` lists all flags")
    return UsageError(
        "unknown flags " + ", ".join(f"{name} ({hint})" if hint else name for name, hint in hints.items())
    )


def _meant(name: str, known: set[str]) -> str | None:
    """What to write for an unknown flag; None where nothing is like it."""
    if once := ONCE.get(name.replace("_", "-")):
        return f"use {once}"
    if match := nearest(name, known):
        return f"did you mean {match}?"
    key = nearest_key(name.lstrip("-").replace("-", "_"))
    return f"--set {key}=VALUE" if key else None


def _as_train_has_them(values: dict[str, Any]) -> None:
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
        if values[name] not in (None, options()[name].default, value):
            raise UsageError(f"{source} and {flag_of(name)} {values[name]} differ", fix="remove one of them")
        values[name] = value


def run(**values: Any) -> int:
    """Write a DeepSpeed configuration as JSON: for the Hugging Face Trainer, or for DeepSpeed alone."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand:
        return 0
    _as_train_has_them(values)
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
        facts = find_facts(spec)
        if own["explain"]:
            text = (as_json if own["form"] == "json" else as_text)(explain(spec, facts)) + "\n"
        else:
            text = render(generate(spec, facts=facts))
        for line in notices(spec, facts):
            print_note(line)
    write_output(text, own["output"], force=own["force"])
    return 0


def _with_batch(spec: ZeroSpec) -> ZeroSpec:
    """The spec with all three batch sizes, if it names the GPUs and is for DeepSpeed alone."""
    shared = spec.autotp * spec.sequence_parallel
    ranks = (spec.gpus or 0) // shared if shared > 0 else 0
    if spec.target != "deepspeed" or ranks == 0:
        return spec
    plan = batch_plan(
        global_batch_size=spec.global_batch_size,
        micro_batch_size=spec.micro_batch_size,
        accumulation=spec.accumulation,
        world_size=ranks,
        default_micro=1,
    )
    return replace(
        spec, global_batch_size=plan.global_batch, micro_batch_size=plan.micro_batch, accumulation=plan.accumulation
    )


def find_facts(spec: ZeroSpec) -> HardwareFacts:
    """What is known about the spec's model and GPU. Raises UsageError for an unknown GPU."""
    config = _model_config(spec.model) if spec.model else {}
    inner = config.get("text_config")
    names = ("hidden_size", "d_model", "n_embd", "hidden_dim")
    width = Settings(config).optional(*names) or Settings(inner if isinstance(inner, dict) else {}).optional(*names)
    if spec.model and config and not width:
        print_note(f"the config.json of {spec.model} has no width: sizes as without --model")
    # Counted only where a value or its reason depends on it: counting some models takes seconds.
    sums = (steps_of(spec) or 1) >= FROM_STEPS
    model = _architecture(config) if config and (spec.offload_param == "nvme" or sums) else None
    return HardwareFacts(
        hidden_size=width,
        largest=model.largest if model else None,
        parameters=model.parameters if model else None,
        model_type=config.get("model_type"),
        gpu=require_gpu(spec.gpu) if spec.gpu is not None else None,
    )


def _architecture(config: dict[str, Any]) -> Architecture | None:
    """The model's shapes; None for a config that they do not follow from."""
    try:
        return describe(config)
    except DsrunError:
        return None


def _model_config(model: str) -> dict[str, Any]:
    """The model's config.json; empty, with a note, if it is not on this machine."""
    if model in models.TASKS:
        return models.model_config(model)
    try:
        return find(model).config
    except MissingError:
        print_note(f"{model} is not on this machine: sizes as without --model (the Trainer fills in auto)")
        return {}


command = ConfigGroup(
    name="config",
    help=run.__doc__,
    callback=run,
    params=[
        *(field_option(each, TYPES) for each in options().values()),
        click.Option(["--bf16"], is_flag=True, help="the same as --precision bf16"),
        click.Option(["--fp16"], is_flag=True, help="the same as --precision fp16"),
        click.Option(
            ["--offload"],
            type=click.Choice(("none", "cpu", "nvme", OPTIMIZER_ONLY)),
            help="cpu, nvme: the same as --offload-optimizer, and under ZeRO 3 as --offload-param too",
        ),
        click.Option(["-o", "--output"], metavar="FILE", help="write into this file instead of stdout"),
        click.Option(["--force"], is_flag=True, help="replace the file"),
        click.Option(["--list", "list_shipped"], is_flag=True, help="list the ready-made files of ds_configs/"),
        click.Option(["--explain"], is_flag=True, help="explain each key and why it has its value"),
        click.Option(["--format", "form"], type=click.Choice(("text", "json")), help="format of --explain and --list"),
    ],
    lazy=COMMANDS,
    invoke_without_command=True,
    no_args_is_help=False,
    subcommand_metavar="[check|upgrade …]",
    context_settings=HYPHENS,
)
