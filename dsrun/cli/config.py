"""`dsrun config`: write a DeepSpeed configuration, list the shipped ones, explain every key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsrun.cli.output import print_note, write_file
from dsrun.errors import UsageError, nearest
from dsrun.options import by_group
from dsrun.zero.generate.spec import ZeroSpec, options

if TYPE_CHECKING:
    from dsrun.hardware.gpus import GpuModel
    from dsrun.zero.generate.blocks import HardwareFacts

# name -> (module, one line for --help)
COMMANDS = {
    "check": ("dsrun.cli.config_check", "Find what is wrong with a configuration."),
    "upgrade": ("dsrun.cli.config_upgrade", "Rewrite keys of older releases."),
}
LARGEST = 2**63
BY_ITSELF = ("list_shipped", "explain", "output_format", "output", "force")


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
        raise click.BadParameter(f"{value!r} is no whole number below 2^63")
    return int(number)


class ConfigGroup(click.Group):
    """Writes a configuration by itself; `check` and `upgrade` are loaded when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from dsrun.zero.generate.config import nearest_key

            key = nearest_key(error.option_name.lstrip("-").replace("-", "_"))
            if key is None or error.possibilities:
                raise
            raise UsageError(f"unknown flag {error.option_name}", fix=f"--set {key}=VALUE") from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            near = nearest(args[0], COMMANDS)
            hint = f"did you mean `dsrun config {near}`?" if near else f"commands: {', '.join(COMMANDS)}"
            raise UsageError(f"{args[0]!r} belongs to no flag and is no command of `dsrun config`", fix=hint)
        given = [each for each in ctx.params if ctx.get_parameter_source(each) is not _DEFAULT]
        if given:
            name = next(each for each in self.params if each.name == given[0]).opts[0]
            raise UsageError(
                f"{name} does not go with `dsrun config {args[0]}`",
                fix=f"flags of {args[0]} stand behind its name",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options under the headings of the spec, then those of the command itself."""
        titles = {each.name: title for title, found in by_group(ZeroSpec).items() for each in found}
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in (*by_group(ZeroSpec), "Output")}
        for each in self.get_params(ctx):
            if record := each.get_help_record(ctx):
                groups[titles.get(each.name or "", "Output")].append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)
        self.format_commands(ctx, formatter)


_DEFAULT = click.core.ParameterSource.DEFAULT


def click_option(each: Field[Any]) -> click.Option:
    """The command-line option of one field of ZeroSpec."""
    meta = each.metadata
    flag = (meta["flag"] or each.name).replace("_", "-")
    names = [f"--{flag}", *(f"--{alias.replace('_', '-')}" for alias in meta["aliases"])]
    help = meta["help"]
    annotation = str(each.type).removesuffix(" | None")
    if annotation == "bool":
        return click.Option([f"--{flag}/--no-{flag}", each.name], default=each.default, help=help)
    kind: Any = {"int": whole, "float": click.FLOAT, "tuple[float, ...]": click.FLOAT}.get(annotation, click.STRING)
    if meta["choices"]:
        kind = click.Choice(meta["choices"])
    default = each.default if each.default not in (None, (), "none") else None
    return click.Option(
        [*names, each.name],
        type=kind,
        default=each.default or None,
        show_default=default is not None,
        metavar=meta["metavar"] or {"int": "N", "float": "X"}.get(annotation),
        multiple=annotation == "tuple[str, ...]",
        nargs=2 if annotation == "tuple[float, ...]" else 1,
        help=help + ("; may be given several times" if annotation == "tuple[str, ...]" else ""),
    )


def _own_options() -> Sequence[click.Option]:
    return (
        click.Option(["-o", "--output"], metavar="FILE", help="write into this file instead of stdout"),
        click.Option(["--force"], is_flag=True, help="replace the file"),
        click.Option(["--list", "list_shipped"], is_flag=True, help="list the ready-made files of ds_configs/"),
        click.Option(["--explain"], is_flag=True, help="say what each key does and why it has its value"),
        click.Option(
            ["--format", "output_format"],
            type=click.Choice(("text", "json")),
            default="text",
            help="form of --explain and --list",
        ),
    )


def run(**values: Any) -> int:
    """Write a DeepSpeed configuration as JSON: for the Hugging Face Trainer, or for DeepSpeed alone."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand:
        return 0
    own = {name: values.pop(name) for name in BY_ITSELF}
    if own["list_shipped"]:
        _deliver(_listing(own["output_format"]), own)
        return 0
    spec = _with_batch(ZeroSpec(**{name: _plain(name, value) for name, value in values.items()}))
    facts = find_facts(spec)
    text = _explanation(spec, facts, own["output_format"]) if own["explain"] else _json(spec, facts)
    from dsrun.zero.generate.explain import notices

    for line in notices(spec, facts):
        print_note(line)
    _deliver(text, own)
    return 0


def _plain(name: str, value: Any) -> Any:
    """click gives None for what was not given and cannot tell it from an empty default."""
    return options()[name].default if value is None else value


def _json(spec: ZeroSpec, facts: HardwareFacts) -> str:
    from dsrun.zero.generate.config import generate, render

    return render(generate(spec, facts=facts))


def _explanation(spec: ZeroSpec, facts: HardwareFacts, form: str) -> str:
    from dsrun.zero.generate.explain import as_json, as_text, explain

    rows = explain(spec, facts)
    return (as_json(rows) if form == "json" else as_text(rows)) + "\n"


def _listing(form: str) -> str:
    from dsrun.zero.reference import LINES, listing

    if form == "text":
        return listing() + "\n"
    import json

    files = [{"file": name, "does": line} for name, line in LINES.items()]
    return json.dumps({"version": 1, "files": files}, indent=2, ensure_ascii=False) + "\n"


def _with_batch(spec: ZeroSpec) -> ZeroSpec:
    """The spec with all three batch sizes, when it says how many GPUs there are and DeepSpeed has nobody to ask."""
    shared = spec.autotp * spec.sequence_parallel
    ranks = (spec.gpus or 0) // shared if shared > 0 else 0
    if spec.target != "deepspeed" or ranks == 0:
        return spec
    from dsrun.recipe.batch import batch_plan

    plan = batch_plan(
        global_batch_size=spec.global_batch_size,
        micro_batch_size=spec.micro_batch_size,
        accumulation=spec.accumulation,
        world_size=ranks,
        default_micro=1,
    )
    return replace(
        spec,
        global_batch_size=plan.global_batch,
        micro_batch_size=plan.micro_batch,
        accumulation=plan.accumulation,
    )


def find_facts(spec: ZeroSpec) -> HardwareFacts:
    """What this machine knows about the spec's model and GPU. Raises UsageError for a GPU nobody knows."""
    from dsrun.zero.generate.blocks import HardwareFacts
    from dsrun.zero.memory.model.configs import Settings

    gpu = find_gpu(spec.gpu) if spec.gpu is not None else None
    config = _model_config(spec.model) if spec.model else {}
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else {}
    names = ("hidden_size", "d_model", "n_embd", "hidden_dim")
    width = Settings(config).optional(*names) or Settings(inner).optional(*names)
    if spec.model and config and not width:
        print_note(f"the config.json of {spec.model} names no width: sizes as without --model")
    return HardwareFacts(
        hidden_size=width,
        largest=_largest(config) if spec.offload_param == "nvme" else None,
        model_type=config.get("model_type"),
        gpu=gpu,
    )


def _largest(config: dict[str, Any]) -> int | None:
    """Elements of the model's largest parameter; None for a config that the shapes do not follow from."""
    from dsrun.errors import DsrunError
    from dsrun.zero.memory.model.count import describe

    if not config:
        return None
    try:
        return describe(config).largest
    except DsrunError:
        return None


def find_gpu(name: str) -> GpuModel:
    """The row of the table of GPUs. Raises UsageError, with similar names, when there is none."""
    from dsrun.hardware.gpus import lookup, meanings, near_names

    found = lookup(name)
    if found is None:
        near = [row.name for row in meanings(name)[:3]] or near_names(name)
        hint = f"did you mean {', '.join(near)}?" if near else "write it as nvidia-smi does, such as A100-SXM4-80GB"
        raise UsageError(f"--gpu {name}: no such GPU is known, or several differ", fix=hint)
    return found


def _model_config(model: str) -> dict[str, Any]:
    """The model's config.json, or nothing (and a word about it) when it is not on this machine."""
    from dsrun.demo import DEMO_NAMES, models
    from dsrun.errors import MissingError
    from dsrun.zero.memory.model.configs import find

    if model in DEMO_NAMES:
        return dict(models.t5_config(1) if model == "demo-t5" else models.llama_config(1))
    try:
        return find(model).config
    except MissingError:
        print_note(f"{model} is not on this machine: sizes as without --model (the Trainer fills what says auto)")
        return {}


def _deliver(text: str, own: dict[str, Any]) -> None:
    """To stdout, or into a file that is written whole and replaces nothing without --force."""
    if own["output"] is None:
        click.echo(text, nl=False)
        return
    write_file(Path(own["output"]), text.encode("utf-8"), force=own["force"])


command = ConfigGroup(
    name="config",
    callback=run,
    params=[*map(click_option, options().values()), *_own_options()],
    invoke_without_command=True,
    no_args_is_help=False,
    subcommand_metavar="[check|upgrade …]",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda word: word.replace("_", "-"),
    },
)
