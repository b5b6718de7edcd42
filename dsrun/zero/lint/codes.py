"""Every code a finding can have, and the reporter that collects findings. docs/config-check.md shows the table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from dsrun.docpage import GeneratedPart, table
from dsrun.findings import Finding, Level
from dsrun.zero.lint.source import Position, Source, dotted
from dsrun.zero.schema import Path


@dataclass(frozen=True)
class Code:
    """What a code stands for. `stops`: who does not run with an error of it, and when."""

    levels: str
    stops: str
    meaning: str


TEXT, READING, ENGINE = (
    "whoever reads the file",
    "DeepSpeed, when it reads the file",
    "DeepSpeed, in its engine",
)
TRAINER, NOBODY = "the HF Trainer", "nobody"

CODES: dict[str, Code] = {
    # the text
    "not_json": Code("error", TEXT, "the text is not JSON; nothing after this place can be checked"),
    "json_extension": Code(
        "error, warning",
        TRAINER,
        "a comment, a trailing comma, `True` or single quotes: accelerate's `json.load` refuses the file; a warning for"
        " comments and trailing commas with `--for deepspeed`, which reads Hjson",
    ),
    "duplicate_key": Code("error", READING, "a duplicate key: DeepSpeed rejects the file, the Trainer takes the last"),
    "not_an_object": Code("error", READING, "the file, or a block of it, is not a JSON object"),
    # the keys
    "unknown_key": Code(
        "error, warning", READING, "DeepSpeed does not know the key; a warning where it ignores it in silence"
    ),
    "removed_key": Code("error", READING, "the feature is gone, and DeepSpeed refuses the key"),
    "legacy_key": Code("warning", NOBODY, "an old name that still works; `dsrun config upgrade` replaces it"),
    "given_twice": Code("error", READING, "one setting under two names"),
    "ignored_key": Code("warning", NOBODY, "another key makes DeepSpeed or the Trainer ignore this one"),
    # the values
    "wrong_type": Code(
        "error, warning",
        READING,
        "a value of another type; a warning when DeepSpeed converts it or does not look",
    ),
    "out_of_range": Code("error, warning", READING, "a number outside the bounds that DeepSpeed checks"),
    "not_a_choice": Code("error", READING, "a word that is none of those DeepSpeed takes"),
    "needs_key": Code("error", READING, "the value works only together with, or without, another key"),
    "needs_stage": Code("error, warning", READING, "the value is for other ZeRO stages; a warning when it is ignored"),
    "breaks_later": Code("error", ENGINE, "DeepSpeed reads the value without a word and fails on it later"),
    "conflict": Code(
        "error, warning",
        ENGINE,
        "two settings that exclude each other; a warning where DeepSpeed ignores one of them",
    ),
    "auto_nobody_fills": Code(
        "error, warning",
        TRAINER,
        'an "auto" that the Trainer does not fill; a warning where the file is for DeepSpeed alone, which drops it',
    ),
    "auto_is_a_constant": Code("warning", NOBODY, 'an "auto" that accelerate fills with a constant'),
    # batch sizes
    "batch_missing": Code("error", READING, "neither train_batch_size nor train_micro_batch_size_per_gpu is given"),
    "batch_mismatch": Code("error", READING, "the batch sizes do not multiply, or are not positive"),
    "batch_world_size": Code("info", NOBODY, "how many GPUs the batch sizes ask for"),
    # the Trainer
    "trainer_stops": Code(
        "error, warning", TRAINER, "a block that DeepSpeed takes and the Trainer or accelerate fails on"
    ),
    "conflicts_with_flag": Code("error", TRAINER, "the file and a training flag differ; it stops when training starts"),
    "flag_has_no_effect": Code("warning", NOBODY, "the file answers what a given training flag asks, and wins"),
    "no_effect": Code("info", NOBODY, "the Trainer, or the ZeRO stage, has no use for the key"),
    # ZeRO and offloading
    "zero3_no_gather_on_save": Code("warning", NOBODY, "ZeRO-3 would save no weights that from_pretrained can load"),
    "offload_needs_stage": Code("warning", NOBODY, "offloading that the ZeRO stage ignores"),
    "offload_slow": Code("info, warning", NOBODY, "offloading works, but slower than it could"),
    "nvme_path_missing": Code("error", ENGINE, "offloading to NVMe without a folder to write to"),
    "nvme_path_odd": Code("warning", NOBODY, "a path that is probably not a local NVMe disk"),
    "bucket_wastes_memory": Code("warning", NOBODY, "buffers of a GiB and more on every GPU without a gain in speed"),
    "bucket_too_small": Code("warning", NOBODY, "buckets so small that starting a transfer costs more than it"),
    # precision
    "fp16_and_bf16": Code("error", READING, "fp16 and bf16 are both on"),
    "t5_fp16": Code("warning", NOBODY, "T5's activations overflow in fp16: the loss becomes NaN"),
    "bf16_needs_ampere": Code("warning", NOBODY, "the GPU has no bf16 arithmetic"),
    "moved_default": Code("info", NOBODY, "a default that DeepSpeed releases have differently: write it out"),
    # optimizers and schedulers
    "unknown_optimizer": Code("error", ENGINE, "neither DeepSpeed nor torch.optim has an optimizer of that name"),
    "untested_optimizer": Code("error", ENGINE, "ZeRO refuses it without zero_allow_untested_optimizer"),
    "optimizer_param": Code(
        "error, warning",
        ENGINE,
        "the optimizer does not take the parameter, or not this value; Muon ignores it",
    ),
    "optimizer_needs": Code("error, warning", ENGINE, "the optimizer needs something that is not there"),
    "unknown_scheduler": Code("error", ENGINE, "there is no such learning rate scheduler, or ZeRO does not take it"),
    "scheduler_param": Code("error", ENGINE, "the scheduler does not take the parameter, or lacks one"),
    "scheduler_warmup": Code("error, warning", ENGINE, "a warm-up that fails, or trains at another rate than it seems"),
}


def markdown() -> str:
    """The codes as a Markdown table."""
    rows = [(f"`{name}`", code.levels, code.meaning, code.stops) for name, code in CODES.items()]
    return table(("code", "level", "what is the matter", "who stops at an error"), rows) + "\n"


def printable(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON can hold and no terminal takes, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass
class Reporter:
    """Findings about one file, each at a path in it. `file` is its name as the user wrote it."""

    source: Source
    file: str
    rows: list[tuple[Position, Finding]] = field(default_factory=list)

    def error(self, code: str, path: Path, message: str, fix: str = "") -> None:
        """DeepSpeed, or the Trainer before it, does not run with this."""
        self.add("error", code, path, message, fix)

    def warning(self, code: str, path: Path, message: str, fix: str = "") -> None:
        """It runs, but hardly as it is meant."""
        self.add("warning", code, path, message, fix)

    def info(self, code: str, path: Path, message: str, fix: str = "") -> None:
        """Worth knowing."""
        self.add("info", code, path, message, fix)

    def add(self, level: Level, code: str, path: Path, message: str, fix: str = "") -> None:
        """Raises ValueError for a code or level that the table of codes does not have."""
        self.at(self.source.position(path), level, code, message, fix, name=dotted(path))

    def at(self, position: Position, level: Level, code: str, message: str, fix: str = "", *, name: str = "") -> None:
        """A finding at a place in the text; `name` is the key's path, if it has one."""
        if level not in CODES[code].levels:
            raise ValueError(f"{code} is never of level {level}")
        place = f"{self.file}:{position.line}" if name else f"{self.file}:{position}"
        where = f"{name} ({place})" if name else place
        message, fix, where = printable(message), printable(fix), printable(where)
        self.rows.append((position, Finding(level=level, code=code, message=message, fix=fix, where=where)))

    def findings(self) -> list[Finding]:
        """Everything that was found, in the order of the file and without repetitions."""
        ordered = sorted(self.rows, key=lambda row: (row[0].line, row[0].column))
        return list(dict.fromkeys(finding for _, finding in ordered))


PART = GeneratedPart("dsrun.zero.lint.codes", markdown)

if __name__ == "__main__":
    PART.main(sys.argv[1:])
