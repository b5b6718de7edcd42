"""The flag of another tool, and the line with ours that its answer names, for each row of other_tools.toml."""

import re
from typing import NamedTuple

from dsrun.recipe.compat.removed import other_tools

# A flag, the name of one of our commands, or a value behind either; the rest of an answer is prose.
TOKEN = re.compile(
    r"""(--[a-z][\w-]*|'[^']*'|[A-Z]+=?[A-Z]*…?|(?!(?:for|of|to|with|in|or|and|where|as|without)\b)[a-z0-9_.]+)([,:;]?)\s*"""
)
# What stands in an answer for a value.
VALUES = {
    "RANK": "8", "BETA": "0.2", "WEIGHT": "0.5", "NAME…": "q", "NAME": "demo-t5", "N": "2", "K": "1",
    "FILE…": "train.jsonl", "FILE": "train.jsonl",
    "DIR": "folder", "PATTERN…": "encoder", "PATTERN=RATE…": "encoder=1e-4", "PORT": "29555",
}  # fmt: skip
# And where the flag wants another.
OF_FLAG = {
    "--optim": "adamw_torch", "--lr_scheduler_type": "linear", "--report_to": "none", "--max_grad_norm": "1",
    "--label_smoothing_factor": "0.1", "--learning_rate": "1e-4", "--neftune_noise_alpha": "5", "--run_name": "mine",
    "--text-column": "source", "--summary-column": "target", "--validation-split-percentage": "5",
    "--torch_compile_backend": "inductor", "--deepspeed": "ds.json", "--config": "run.yaml", "--mix": "mix.yaml",
    "--hub_model_id": "me/mine", "--dataset": "data", "--chat-template": "chatml", "--test-file": "train.jsonl",
    "--sample-prompts": "prompts.txt", "--model": "model", "--output": "mine", "--attn-implementation": "sdpa",
    "--weights-dtype": "bfloat16", "--tokenizer": "model", "--dpo-loss": "ipo", "--dpo-divergence": "js_divergence",
}  # fmt: skip


class AnsweredFlag(NamedTuple):
    """`words` are what its answer says to write instead, () where it says to leave it out, None for anything else."""

    name: str
    words: tuple[str, ...] | None


def answered_flags() -> list[AnsweredFlag]:
    """Every row of the table."""
    return [AnsweredFlag(name, words_of(advice)) for name, (_, advice) in other_tools().items()]


def words_of(advice: str) -> tuple[str, ...] | None:
    """The first line that the answer names, with values."""
    _, found, rest = advice.partition("write --")
    if not found:
        return () if "leave it out" in advice else None
    words: list[str] = []
    rest = f"--{rest}"
    while match := TOKEN.match(rest):
        word, end = match[1].strip("'"), match[2]
        value = OF_FLAG.get(words[-1]) if words and word in VALUES else None
        if words[-1:] == ["--report_to"] and word != "tensorboard":
            word = "none"  # whose packages are not installed here
        words.append(value or VALUES.get(word) or re.sub(r"\bN\b", "0.1", word).replace("RATE", "1e-4"))
        rest = rest[match.end() :]
        if end:
            break
    return tuple(words)
