"""`dsrun plan`: its options. What it does is in run.py."""

from typing import Any

import click

from dsrun.cli.options import Command, format_option
from dsrun.zero.memory.optimizers import DEFAULT
from dsrun.zero.offload import OPTIMIZER_ONLY


@click.command(cls=Command, name="plan")
@click.option("--model", required=True, metavar="NAME|DIR", help="model folder, config.json, or cached Hub name")
@click.option(
    "--hub", type=click.Choice(["huggingface", "modelscope"]), default="huggingface", show_default=True,
    help="what --model is a name on; of ModelScope, config and tokenizer are downloaded",
)  # fmt: skip
@click.option("--gpus", metavar="NAME[:N]", help="GPUs of one node, such as a100-80:8  [default: those here]")
@click.option("--cluster", is_flag=True, help="take the GPUs from this SLURM cluster's nodes")
@click.option("--partition", metavar="NAME", help="take the GPUs from this partition's nodes")
@click.option("--nodes", type=int, default=1, show_default=True, help="nodes with these GPUs")
@click.option("--gpu-memory", type=float, metavar="GIB", help="GiB of one GPU, if its model is unknown")
@click.option("--host-memory", type=float, metavar="GIB", help="GiB of host memory per node  [default: 256 a GPU]")
@click.option("--max-length", type=int, metavar="N", help="tokens per sample; of a seq2seq model, of both sides")
@click.option("--max-source-length", type=int, metavar="N", help="source tokens per sample (seq2seq)")
@click.option("--max-target-length", type=int, metavar="N", help="target tokens per sample (seq2seq)")
@click.option("--global-batch-size", type=int, metavar="N", help="samples per optimizer step over all GPUs")
@click.option("--micro-batch-size", type=int, metavar="N", help="samples per GPU and pass  [default: all that fit]")
@click.option("--zero", type=click.Choice(["0", "1", "2", "3"]), help="this ZeRO stage only  [default: each]")
@click.option(
    "--offload", type=click.Choice(["none", "cpu", "nvme", OPTIMIZER_ONLY]),
    help="this place of optimizer states (and ZeRO-3 parameters) only  [default: each]",
)  # fmt: skip
@click.option("--deepspeed", metavar="FILE", help="your own DeepSpeed JSON, instead of those three and --precision")
@click.option("--optim", metavar="NAME", help=f"optimizer, as the Trainer calls it  [default: {DEFAULT}]")
@click.option(
    "--weights-dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True,
    help="dtype the weights are loaded in, which plain DDP (ZeRO 0) trains",
)  # fmt: skip
@click.option("--use-liger-kernel", is_flag=True, help="compute the loss without all logits at a time")
@click.option("--lora", type=int, metavar="RANK", help="train LoRA adapters of this rank only")
@click.option(
    "--preset", type=click.Choice(["conservative", "balanced", "aggressive"]), default="balanced",
    show_default=True, help="fill at most 50%, 65% or 90% of each GPU",
)  # fmt: skip
@click.option(
    "--precision", type=click.Choice(["auto", "bf16", "fp16", "fp32"]), default="auto", show_default=True,
    help="number format of training",
)  # fmt: skip
@click.option(
    "--gradient-checkpointing", type=click.Choice(["on", "off", "auto"]), default="auto", show_default=True,
    help="keep only each layer's input and compute the rest again",
)  # fmt: skip
@click.option(
    "--attention", type=click.Choice(["sdpa", "flash", "eager"]), default="sdpa", show_default=True,
    help="sdpa takes a mask where rows are padded, flash none; eager keeps all scores",
)  # fmt: skip
@click.option("--packed", is_flag=True, help="rows are packed or of one length: no padding mask")
@click.option(
    "--sequence-parallel", type=click.IntRange(min=1), default=1, show_default=True, metavar="K",
    help="GPUs that share a sample, as with `dsrun train --long-context`",
)  # fmt: skip
@click.option("--from-scratch", is_flag=True, help="initialise the model instead of loading it")
@click.option("--train-file", metavar="FILE", help="training data, for the commands that follow")
@click.option("--dataset", metavar="NAME", help="dataset, for the commands that follow")
@click.option("--nvme-path", default="/local_nvme", show_default=True, metavar="DIR", help="local NVMe folder")
@click.option(
    "--count", "counting", type=click.Choice(["auto", "meta", "shapes"]), default="auto", show_default=True,
    help="count a config without weights on transformers' meta device, or from its shapes",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="show every strategy by itself")
@format_option
@click.option("--calibrate", is_flag=True, help="train two steps at the chosen point here and compare")
def command(**given: Any) -> int:
    """What fits where: memory and speed of every ZeRO strategy, from the model's config alone."""
    from dsrun.cli.plan.run import run  # help needs the options only

    return run(**given)
