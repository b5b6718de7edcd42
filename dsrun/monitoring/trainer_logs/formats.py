"""How figures stand in the lines of trainers: patterns and keys, each with who writes it so."""

import re

NUMBER = r"([-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)(?![\w-]))"
# Possessive: what is no figure after all is not looked at again, or a long row of blanks takes minutes.
_IS = r"['\"]?\s*+(?:[:=]\s*+)?(?:[\[(]\s*+)?"
_STEPS = r"(?:steps?|iter(?:ation)?s?|iter_num)"
_PER_S = r"(?:[_ ]per[_ ]sec(?:ond)?|/s(?:ec)?)"


def _named(name: str, value: str = NUMBER, *, after: str = "") -> re.Pattern[str]:
    """A figure behind its name: "loss 2.3", "loss: 2.3", "loss=2.3", "lr=[0.001]"."""
    return re.compile(rf"(?<![\w/.])(?:{name}){_IS}{value}{after}", re.IGNORECASE)


# key -> how it stands in a line; the first place in the line counts.
FIGURES: dict[str, re.Pattern[str]] = {
    # DeepSpeed: "step=10, skipped=0", "/global_step=10"; Megatron-LM: "iteration  201/ 250000 |"; nanoGPT: "iter 10:".
    "step": re.compile(rf"(?<![\w.])(?:global[_ ])?{_STEPS}\b{_IS}(\d[\d,]*)(?![\w.]\S)", re.IGNORECASE),
    # Megatron-LM, dsrun: "step 34/60"; Hugging Face: "Total optimization steps = 3,000"; torchtitan: "total steps 1000"
    "max_steps": re.compile(
        rf"{_STEPS}\b[\s:=\[(]*+\d[\d,]*+\s*+(?:/|of)\s*+(\d[\d,]*)"
        r"|total (?:optimization )?steps[ =:]+([\d,]+)",
        re.IGNORECASE,
    ),
    # Lightning: "train_loss_step=0.3".
    "loss": _named(r"(?:lm |train(?:ing)?[_ /])?loss(?:_step)?\b(?! scale)"),
    "lr": _named(r"(?:lr|learning[_ ]rate)\b"),
    "grad_norm": _named(r"(?:grad(?:ient)?[_ ]?norm|gnorm)\b"),
    "epoch": _named(r"epoch\b", r"(\d+(?:\.\d+)?)"),
    # torchtitan: "tps: 7,123".
    "tokens_per_s": _named(rf"(?:tps|tok(?:en)?s?{_PER_S})\b"),
    # DeepSpeed: "CurrSamplesPerSec=66.01", "samples/sec: 65.0".
    "samples_per_s": _named(rf"(?:CurrSamplesPerSec|samples?{_PER_S})"),
    "mfu": _named(r"mfu\b", after=r"\s*%"),
    # Megatron-LM: "elapsed time per iteration (ms): 139113.4 |"; nanoGPT: "time 24.51ms".
    "step_ms": _named(
        r"(?:elapsed time per iteration|time|dt|step[_ ]time)(?: ?\(ms\))?", rf"{NUMBER}(?=\s*ms|\s*\|)"
    ),
    # DeepSpeed's pipeline engine: "iter time (s): 0.123".
    "step_s": _named(r"iter time \(s\)"),
}  # fmt: skip
TOKENS_BEFORE = re.compile(r"(?<![\d,.])([\d,.]++) tok(?:en)?s/s(?!\w*\s*[:=])")
"""dsrun's own console: "24,190 tokens/s"."""
BAR = re.compile(r"(?<!\d)\d+%\|[^|]*\|\s*+(?P<step>\d+)/(?P<total>\d+) \[(?P<times>[^\]]*)\]")
"""tqdm: "Training:  12%|█▏        | 123/1000 [01:02<07:22,  1.98it/s, loss=2.3]"."""
BAR_RATE = re.compile(r"(?<![\d.])([\d.]{1,12}+)(it/s|s/it)")
TIME = re.compile(r"\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(Z|[+-]\d\d:?\d\d)?")
DICT = re.compile(r"\{['\"]")
"""The begin of a dict; it ends with the last brace of the line."""
EVALUATES = re.compile(r"\b(?:eval\w*|val(?:id\w*)?|test)\b(?!_)", re.IGNORECASE)
EVALUATION_LOSS = re.compile(r"\b(?:eval\w*|val(?:id\w*)?|test)[ _]loss\b", re.IGNORECASE)
"""Behind the loss of training: "Loss: 0.067 | Val Loss: 0.133"."""
FRAME = re.compile(r"(?:\[rank\d+\]: )?  File \"")
"""Of a traceback: what follows is source, and the exception."""
EPOCH_OF = re.compile(r"\bepoch\b\W{0,4}(\d{1,6})\s*(?:/|of)\s*(\d{1,6})", re.IGNORECASE)
"""Often before a step that begins again with every epoch: "Epoch [2/3], Step [4/5]"."""
EPOCHS = re.compile(r"Num Epochs = ([\d,]+)")
"""Hugging Face, at log level info."""
END = re.compile(r"\btraining (?:is )?(?:completed|finished|done)\b|['\"]?train_runtime", re.IGNORECASE)
INTERESTING = re.compile(r"loss|step|iter|it/s|s/it|%\||SamplesPerSec|Num Epochs|training|train_runtime", re.IGNORECASE)
"""A line without any of these words has no figure: looking for one pattern is faster than for twelve."""
# The keys of dicts (Hugging Face, TRL, axolotl) and JSON lines (LLaMA-Factory, torchtune, wandb) -> ours.
KEYS: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "current_steps", "iteration", "iter", "trainer/global_step", "_step"),
    "max_steps": ("max_steps", "total_steps", "max_iters"),
    "loss": ("loss", "train_loss", "train/loss", "lm_loss", "training_loss", "loss_metrics/global_avg_loss"),
    "lr": ("lr", "learning_rate", "train/learning_rate", "train/lr"),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm"),
    "epoch": ("epoch", "train/epoch"),
    "tokens_per_s": ("tokens_per_s", "tokens_per_second", "tps", "throughput", "throughput(tps)"),
    "samples_per_s": ("samples_per_s", "samples_per_second"),
}
