"""`dsrun init`: its options, one for each question. What it does is in run.py."""

import click

from dsrun.cli.options import DEBUG, HYPHENS, Command, lazy_callback, write_grouped_options

HELP = """Write a first run.yaml: a few questions, each with a default found on this machine.

Every question has an option. Without a terminal nothing is asked: options and defaults count, and what has no default
must be given. The file is checked as `dsrun train` checks it, and explains each of its values.
"""
# fmt: off
GROUPS = {
    "Model and data": [
        click.Option(["--model"], metavar="NAME|DIR", help="a local folder, a Hub name, or demo-t5 / demo-llama"),
        click.Option(["--from-scratch"], is_flag=True, help="initialise from the model's config, without its weights"),
        click.Option(["--train-file"], metavar="FILE", multiple=True, help="training data; may be repeated"),
        click.Option(["--validation-file"], metavar="FILE", multiple=True, help="validation data; may be repeated"),
        click.Option(["--dataset"], metavar="NAME|PATH", help="dataset of the Hub, or a local folder"),
        click.Option(["--dataset-config"], metavar="NAME", help="configuration (subset) of that dataset"),
        click.Option(["--text-column"], metavar="NAME", help="column of the source text, or of the only one"),
        click.Option(["--summary-column"], metavar="NAME", help="column of the target text"),
        click.Option(["--chat-template"], metavar="FILE|NAME", help="template of conversations: a file, or chatml"),
        click.Option(
            ["--task"], type=click.Choice(["auto", "seq2seq", "causal-lm", "dpo"]),
            help="what the model learns; asked only if model and data do not tell",
        ),
    ],
    "Machine": [
        click.Option(["--slurm/--no-slurm"], default=None, help="run as a SLURM job, or on this machine"),
        click.Option(["--partition"], metavar="NAME", help="SLURM partition"),
        click.Option(["--account"], metavar="NAME", help="SLURM account, where the partition needs one"),
        click.Option(["--nodes"], metavar="N", help="nodes of the job"),
        click.Option(["--gpus-per-node"], metavar="[TYPE:]N", help="GPUs of each node"),
        click.Option(["--time"], metavar="TIME", help="time limit of the job: 8:00:00, 2-00:00:00 or minutes"),
    ],
    "Training": [
        click.Option(
            ["--preset"], type=click.Choice(["conservative", "balanced", "aggressive"]),
            help="fill at most 50%, 65% or 90% of each GPU",
        ),
        click.Option(["--lora"], metavar="RANK", help="LoRA adapters of this rank; 0 trains all weights"),
        click.Option(
            ["--zero"], type=click.Choice(["0", "1", "2", "3", "auto"]), help="ZeRO stage  [default: as planned]"
        ),
        click.Option(
            ["--offload"], type=click.Choice(["none", "cpu", "optimizer"]), help="place of the states, with --zero"
        ),
        click.Option(["--global-batch-size"], metavar="N", help="samples per optimizer step over all GPUs"),
        click.Option(["--output"], metavar="DIR", help="run folder"),
    ],
    "Output": [
        click.Option(["-y", "--yes"], is_flag=True, help="accept every default, ask nothing"),
        click.Option(
            ["-o", "--output-file"], metavar="FILE", default="run.yaml", show_default=True,
            help="file to write; -: stdout",
        ),
        click.Option(["--dry-run"], is_flag=True, help="print the file instead of writing it"),
        click.Option(["--force"], is_flag=True, help="replace the file"),
    ],
}
# fmt: on


class InitCommand(Command):
    """Shows its options under the headings of `GROUPS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        titles = {each.name or "": title for title, found in GROUPS.items() for each in found}
        write_grouped_options(self, ctx, formatter, titles)


command = DEBUG(
    InitCommand(
        name="init",
        help=HELP,
        callback=lazy_callback("dsrun.cli.init.run:run"),
        params=[each for found in GROUPS.values() for each in found],
        context_settings=HYPHENS,
        epilog="docs/init.md shows a session.",
    )
)
