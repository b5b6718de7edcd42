"""What it is worth that the metadata of packed rows is made once for a micro batch: forward and backward pass of the
same rows with and without, in turn within one process. CPU time, or on a GPU the time of its kernels and launches.

`python -m bench packed_rows`. Without: lengths, masks and biases are made anew in each layer and recomputation.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from dsrun.train.packing import encoder_decoder
from dsrun.train.packing.documents import ATTENTION, use_document_attention
from dsrun.train.packing.encoder_decoder import install, pair_inputs
from dsrun.train.packing.probe import packed_inputs

ROUNDS = 1 if os.environ.get("DSRUN_BENCH_DRY") else 5
LAYERS = 6
VOCABULARY = 4096
CAUSAL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 4096, "pad_token_id": 0,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": LAYERS, "num_heads": 4,
    "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
ON_GPU: dict[str, dict[str, Any]] = {
    "causal": {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16},
    "t5": {"d_model": 1024, "d_ff": 4096, "num_heads": 16},
}
"""Or launches are all that is measured. There torch's kernel needs no lengths on the host, nor masks for a window."""
LINE = "{:44} {:>9} {:>9} {:>7} {:>10}"


@dataclass(frozen=True)
class Case:
    """`documents` of about `length` tokens each, in one row, for T5 in four."""

    kind: str
    documents: int
    length: int
    recompute: bool = False
    window: int | None = None

    @property
    def name(self) -> str:
        words = f"{self.kind}, {self.documents} documents of {self.length}"
        words += f", window {self.window}" if self.window else ""
        return words + (", recomputing" if self.recompute else "")


CASES = (
    Case("llama", 16, 90),
    Case("llama", 16, 90, recompute=True),
    Case("llama", 160, 9),
    Case("mistral", 2, 720, window=256),
    Case("mistral", 2, 720, window=256, recompute=True),
    Case("t5", 16, 90),
    Case("t5", 16, 90, recompute=True),
    Case("t5", 4, 360),
)


def main() -> bool:
    """Print the table; whether each loss is the same to the last bit."""
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU, one thread'}; ms, medians of {ROUNDS} pairs")
    print(LINE.format("case", "each time", "once", "ratio", "same loss"))
    same = True
    for case in CASES:
        times, losses = measured(case, device)
        ratio = median(off / on for off, on in zip(times[False], times[True], strict=True))
        off, on = (f"{median(times[kind]) * 1e3:.0f}" for kind in (False, True))
        equal = len(losses) == 1
        print(LINE.format(case.name, off, on, f"{ratio:.3f}", "yes" if equal else "NO"), flush=True)
        same &= equal
    print(f"all losses the same: {'yes' if same else 'NO'}")
    return same


def measured(case: Case, device: str) -> tuple[dict[bool, list[float]], set[float]]:
    """Seconds of passes whose metadata is made anew (False) and once (True), and the losses that were seen."""
    steps = {}
    for once in (False, True):
        with made(once=once):
            steps[once] = step_of(case, device)
    times: dict[bool, list[float]] = {False: [], True: []}
    losses = set()
    for number in range(ROUNDS + 1):
        for once, step in steps.items():
            with made(once=once):
                began = now(device)
                losses.add(float(step()))
                if number:
                    times[once].append(now(device) - began)
    return times, losses


def now(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def step_of(case: Case, device: str) -> Callable[[], torch.Tensor]:
    """A forward and a backward pass of a new model."""
    torch.manual_seed(0)
    chance = random.Random(0)
    lengths = [max(2, round(case.length * chance.uniform(0.5, 1.5))) for _ in range(case.documents)]
    documents = [torch.randint(2, VOCABULARY, (length,)) for length in lengths]
    options = {"sliding_window": case.window} if case.window else {}
    sizes = T5 if case.kind == "t5" else CAUSAL
    if device == "cuda":
        sizes = sizes | ON_GPU["t5" if case.kind == "t5" else "causal"]
    config = AutoConfig.for_model(case.kind, **sizes, **options)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model: Any = kind.from_config(config, attn_implementation="sdpa", dtype=dtype_of(device)).to(device).train()
    if case.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if config.is_encoder_decoder:
        rows = [[{"input_ids": each, "labels": each} for each in documents[row::4]] for row in range(4)]
        inputs = pair_inputs(rows, 0, model.prepare_decoder_input_ids_from_labels)
        install(model)
    else:
        if why := use_document_attention(model, None):
            sys.exit(f"error: {why}")
        inputs = packed_inputs([documents], "documents", pad_id=0)
        inputs["labels"] = inputs["input_ids"]
    inputs = {name: each.to(device) if torch.is_tensor(each) else each for name, each in inputs.items()}

    def step() -> torch.Tensor:
        model.zero_grad()
        loss: torch.Tensor = model(**inputs).loss
        loss.backward()
        return loss.detach()

    return step


def dtype_of(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


@contextmanager
def made(*, once: bool) -> Iterator[None]:
    """With `once` False, nothing is kept from one layer to the next."""
    if once:
        yield
        return
    attention, biased = type(ATTENTION), encoder_decoder._BIASED
    call = attention.__call__

    def forgetful(self: Any, *args: Any, **given: Any) -> Any:
        self._ends = None
        return call(self, *args, **given)

    attention.__call__, encoder_decoder._BIASED = forgetful, {"no attention has this"}  # type: ignore[method-assign]
    try:
        yield
    finally:
        attention.__call__, encoder_decoder._BIASED = call, biased  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
