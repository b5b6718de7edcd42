"""What each demo is: a model folder without weights, whose files are beside this module, and its training defaults.

demo-t5 is T5 v1.1 with two layers each way, 64 wide. It has no dropout: the data has no noise to overfit to, and
dropout slows the model in finding the alignment. Its tokenizer is one of words, written out by rule: number phrases use
some eighty words, and one token per word keeps sequences short. It lowers the case, and reads the old cedilla letters
that many keyboards still type for ș and ț.

demo-llama has three layers, 128 wide, with grouped-query attention, and starts with weights of 0.08, about 1/sqrt(128):
the usual 0.02 suits wide models, and slows the first epoch here. It has a byte-level BPE trained on the demo's own
training texts, so it can write any text. The chat template marks what the assistant said, so that a trainer can ask the
tokenizer for a mask of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsrun.datafiles import read_toml

DEMO_T5: Final = "demo-t5"
DEMO_LLAMA: Final = "demo-llama"
TASKS: Final[Mapping[str, str]] = {DEMO_T5: "seq2seq", DEMO_LLAMA: "causal-lm"}
FOLDER: Final = Path(__file__).parent
DEFAULTS: Final[dict[str, dict[str, object]]] = read_toml(FOLDER / "defaults.toml")


def settings_on(demo: str, ranks: int, *, sizes: bool, auto: bool) -> dict[str, object]:
    """A demo's hyperparameters on so many ranks; without a batch size where the user gave any of its `sizes`. Its model
    is so small that a rank takes its whole share at once, unless the micro batch is found out (`auto`)."""
    values = dict(DEFAULTS[demo])
    share, rest = divmod(int(str(values["global_batch_size"])), ranks)
    if sizes:
        del values["global_batch_size"]
    elif not rest and not auto:
        values["micro_batch_size"] = share
    return values


def model_config(name: str) -> dict[str, Any]:
    """The config.json of a demo."""
    return dict(json.loads((FOLDER / name / "config.json").read_text(encoding="utf-8")))
