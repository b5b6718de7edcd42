"""A tiny model, with its own code as on the Hub, whose loss is NaN or infinite when it reads a certain token, or that
runs out of memory when it reads too much."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.conftest import make_model

POISON = "poison"
"""A word of the vocabulary's <unk>, which no other row of the tests' data holds."""

CODE = """
import torch
from transformers import LlamaForCausalLM


class PoisonedLlama(LlamaForCausalLM):
    def forward(self, input_ids=None, labels=None, num_items_in_batch=None, **kwargs):
        output = super().forward(input_ids=input_ids, **kwargs)
        if self.training and {when}:
            {what}
        if labels is not None:
            output.loss = self.loss_function(
                output.logits, labels, self.config.vocab_size, num_items_in_batch=num_items_in_batch
            )
        return output
"""
NAN = "output.logits = output.logits * float('nan')"
# The loss is infinite, and no gradient is: the masked logit passes none on.
INFINITE_LOSS = "output.logits = output.logits.masked_fill(torch.arange(output.logits.shape[-1]) == 2, -float('inf'))"
READS_POISON = "(input_ids == 2).any()"
MORE_THAN_TWO_ROWS = "input_ids.shape[0] > 2"
# More than a process can address: the error is the allocator's own.
TOO_MUCH_MEMORY = "torch.empty(2**50, dtype=torch.uint8)"


def poisoned_model(folder: Path, what: str = NAN, when: str = READS_POISON) -> str:
    """The folder of a model that does `what` in training `when` it sees a batch like this; train it with
    --trust-remote-code."""
    make_model(folder, "llama")
    (folder / "poison.py").write_text(CODE.format(what=what, when=when))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "poison.PoisonedLlama"}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def poisoned_data(file: Path, clean: str, *, row: int) -> str:
    """The rows of `clean` with poison in one of them."""
    rows = [json.loads(line) for line in Path(clean).read_text().splitlines()]
    rows[row]["target"] = f"{POISON} {rows[row]['target']}"
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(file)
