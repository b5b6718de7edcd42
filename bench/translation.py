"""Real data from end to end: English to German under `dsrun train` and under transformers' Seq2SeqTrainer.

Both train the same small T5, from the same weights, on the same pairs (bench/translation_data.py) with the same
arguments and number of steps, side by side with one thread each, and translate the same held-out sources. The
translations should be equally good; CPU seconds a step say what each costs. It takes more than an hour of CPU time, so
`python -m bench` runs it only when it is named; `python -m bench.translation --steps 20 --rows 500` tries it out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from bench.translation_data import PACKAGES, fetch_packages, make_parts
from bench.translation_runs import LONGEST, Recipe, Run, dsrun_command, make_model, plain_command, side_by_side

BATCH = 64
LIBRARIES = ("torch", "transformers", "accelerate", "deepspeed", "datasets", "tokenizers", "sacrebleu")
LINE = "{:8} {:>6} {:>6} {:>9} {:>10} {:>11} {:>8} {:>8}"


def main(words: Sequence[str] = ()) -> bool:
    """Print the table of each seed; True, as there is no limit."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the runs are ended, too
    options = _parser().parse_args(words)
    folder: Path = options.output.resolve()
    data = make_data(folder, options.rows)
    for seed in options.seeds:
        runs = folder / f"seed-{seed}"
        shutil.rmtree(runs, ignore_errors=True)
        parameters = make_model(data / "train.jsonl", runs / "initial", seed)
        arguments = {
            "max_steps": options.steps, "per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH,
            "learning_rate": 3e-3, "lr_scheduler_type": "linear", "warmup_steps": max(1, options.steps // 10),
            "logging_steps": max(1, options.steps // 50), "train_sampling_strategy": options.sampling, "seed": seed,
        }  # fmt: skip
        train, test, initial = (str(path) for path in (data / "train.jsonl", data / "test.jsonl", runs / "initial"))
        ours, plain = (Recipe(initial, train, test, str(runs / name), arguments) for name in ("dsrun", "plain"))
        done = side_by_side(
            [("dsrun", ours, dsrun_command(ours, zero=options.zero)), ("plain", plain, plain_command(plain))]
        )
        print(f"seed {seed}: {parameters / 1e6:.1f} M parameters, {options.steps} steps of {BATCH} pairs")
        print_table(done, tokens_per_step(runs / "initial", data / "train.jsonl"))
    return True


def make_data(folder: Path, rows: int | None) -> Path:
    """The three parts, from Debian packages unless they are there already; their sizes and sources are printed."""
    data = folder / "data"
    if not (data / "versions.json").exists():
        versions = fetch_packages(PACKAGES, folder / "packages")
        counts = make_parts(folder / "packages", data)
        shutil.rmtree(folder / "packages")
        (data / "versions.json").write_text(json.dumps({"pairs": counts, "packages": versions}, indent=2))
    made = json.loads((data / "versions.json").read_text())
    print("pairs: " + ", ".join(f"{count:,} {part}" for part, count in made["pairs"].items()))
    print("packages: " + ", ".join(f"{name} {number}" for name, number in made["packages"].items()))
    print("libraries: " + ", ".join(f"{name} {version(name)}" for name in LIBRARIES))
    if rows is None:
        return data
    few = folder / f"data-{rows}"
    few.mkdir(exist_ok=True)
    for part in ("train", "validation", "test"):
        with (data / f"{part}.jsonl").open(encoding="utf-8") as lines:
            (few / f"{part}.jsonl").write_text("".join(islice(lines, rows)), encoding="utf-8")
    return few


def tokens_per_step(model: Path, file: Path) -> float:
    """Tokens of sources and targets in a batch, without padding, on average."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    ids = (tokenizer([row[side] for row in rows], max_length=LONGEST, truncation=True) for side in ("source", "target"))
    return BATCH * sum(len(each) for side in ids for each in side["input_ids"]) / len(rows)


def print_table(runs: Sequence[Run], tokens: float) -> None:
    """A line for each run, and the ratios of the first to the last."""
    print(LINE.format("", "BLEU", "chrF", "test loss", "last loss", "ms a step", "CPU s", "wall s"))
    for run in runs:
        bleu, chrf = scores(Path(run.recipe.output, "predictions-test.jsonl"))
        loss = test_loss(Path(run.recipe.output, "model"), Path(run.recipe.test))
        figures = f"{bleu:.2f}", f"{chrf:.2f}", f"{loss:.3f}", f"{run.steps()[-1]['loss']:.3f}"
        cost = f"{run.cpu_per_step() * 1000:.0f}", f"{run.cpu_s:.0f}", f"{run.wall_s:.0f}"
        print(LINE.format(run.name, *figures, *cost))
    ours, plain = (run.cpu_per_step() for run in runs)
    print(f"tokens per CPU second: {runs[0].name} {tokens / ours:,.0f}, {runs[1].name} {tokens / plain:,.0f}")
    print(f"a step under {runs[0].name} takes {ours / plain:.2f} × the CPU time of one under {runs[1].name}")
    print(f"whole runs: {runs[0].cpu_s / runs[1].cpu_s:.2f} ×")


def scores(predictions: Path) -> tuple[float, float]:
    """BLEU and chrF of a file of predictions, with sacreBLEU's defaults."""
    import sacrebleu

    rows = [json.loads(line) for line in predictions.read_text(encoding="utf-8").splitlines()]
    texts, references = [row["prediction"] for row in rows], [[row["reference"] for row in rows]]
    return sacrebleu.corpus_bleu(texts, references).score, sacrebleu.corpus_chrf(texts, references).score


def test_loss(model: Path, file: Path) -> float:
    """Mean over the target tokens of all rows. Computed here for both: the stock evaluation is a mean of batches."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq

    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModelForSeq2SeqLM.from_pretrained(model).eval()
    collate = DataCollatorForSeq2Seq(tokenizer, model=network)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    ids: list[Any] = [
        tokenizer(row["source"], text_target=row["target"], max_length=LONGEST, truncation=True) for row in rows
    ]
    total = count = 0.0
    with torch.inference_mode():
        for start in range(0, len(ids), BATCH):
            batch = collate(ids[start : start + BATCH])
            learned = int((batch["labels"] != -100).sum())
            total += float(network(**batch).loss) * learned
            count += learned
    return total / count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.translation", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6000, help="optimizer steps (default 6000)")
    parser.add_argument("--rows", type=int, metavar="N", help="only the first N pairs of each part")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="SEED", help="one comparison each")
    parser.add_argument("--sampling", choices=("group_by_length", "random"), default="group_by_length")
    parser.add_argument("--zero", type=int, choices=(0, 1, 2, 3), default=0, help="ZeRO stage of dsrun (default 0)")
    parser.add_argument("--output", type=Path, default=Path("runs/translation"), help="folder of data and runs")
    return parser


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
