"""accelerate's YAML: the DeepSpeed configuration that its `deepspeed_config:` block stands for.

accelerate 1.15 hands the block over in environment variables (accelerate.utils.launch, prepare_deepspeed_cmd_env), from
which its DeepSpeedPlugin makes the JSON, unless deepspeed_config_file names one. test_lint_accelerate.py compares both.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.messages import suggestion
from dsrun.system.yaml_nodes import refuse_endless
from dsrun.zero.view import AUTO, ZERO

FILE = "deepspeed_config_file"
BLOCK = "deepspeed_config"
_TABLE = toml_beside(__file__)
KEYS: dict[str, str] = _TABLE["keys"]
"""Key of the block -> key of the JSON."""
# What accelerate refuses beside a deepspeed_config_file (DeepSpeedPlugin._deepspeed_config_checks).
NOT_BESIDE_FILE = (*KEYS, "mixed_precision")
# Where the YAML says otherwise than JSON what repairs a finding. accelerate's launcher does not pass paths on.
OWN_FIXES = ("nvme_path_missing.accelerate", "zero3_no_gather_on_save.accelerate")


@dataclass(frozen=True, kw_only=True)
class AccelerateFile:
    """What the YAML asks for: a DeepSpeed JSON by its name, else the `config` that accelerate makes, and as `meant` the
    one that was meant, with the folders that accelerate loses.

    `lines` are those of the YAML's keys; `precision` is bf16, fp16 or no, `processes` the number of ranks."""

    file: str
    named: str | None
    config: dict[str, Any]
    meant: dict[str, Any]
    precision: str = "no"
    processes: int | None = None
    lines: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def placed(self, finding: Finding) -> Finding:
        """A finding about `config`, at the YAML's key."""
        path = finding.where.partition(" ")[0]
        name = next((name for name, key in KEYS.items() if key == path), None)
        name = name or next((name for name, key in KEYS.items() if key.startswith(f"{path}.")), None) or BLOCK
        own = f"{finding.code}.accelerate"
        return replace(finding, where=self.place(name), fix=text_of(own) if own in OWN_FIXES else finding.fix)

    def place(self, name: str) -> str:
        """`zero_stage (accelerate.yaml:7)`."""
        return f"{name} ({self.file}:{self.lines.get(name, self.lines.get(BLOCK, 1))})"


def read_accelerate(text: str, file: str) -> AccelerateFile | None:
    """What accelerate's YAML asks for; None for text that is not one. Raises UsageError for broken YAML."""
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        refuse_endless(root, file)
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}" if mark else file
        raise UsageError(f"{place}: not YAML: {getattr(error, 'problem', None) or 'it cannot be read'}") from None
    if not isinstance(content, dict) or not isinstance(content.get(BLOCK), dict):
        return None
    block, precision = content[BLOCK], str(content.get("mixed_precision") or "no")
    processes = content.get("num_processes")
    made = AccelerateFile(
        file=file,
        named=str(block[FILE]) if block.get(FILE) else None,
        config=_config(block, precision),
        meant=_config(block, precision, gathers=True, paths=True),
        precision=precision,
        processes=processes if isinstance(processes, int) and processes > 0 else None,
        lines=_lines(root),
    )
    return replace(made, findings=(*_unknown(made, block), *_beside_file(made, {**block, **content})))


def _lines(root: Any) -> dict[str, int]:
    """The lines of the top level's keys and the block's."""
    found: dict[str, int] = {}
    for key, value in root.value:
        found.setdefault(key.value, key.start_mark.line + 1)
        if key.value == BLOCK:
            found |= {inner.value: inner.start_mark.line + 1 for inner, _ in value.value}
    return found


def _config(block: dict[str, Any], precision: str, *, gathers: bool = False, paths: bool = False) -> dict[str, Any]:
    """What DeepSpeedPlugin makes of the block, without its nulls. `gathers`: whether ZeRO-3 gathers weights on save
    where the block does not say."""
    zero: dict[str, Any] = {"stage": block.get("zero_stage", 2)}
    for name in ("offload_optimizer", "offload_param"):
        device = block.get(f"{name}_device", "none")
        if device != "none":
            path = block.get(f"{name}_nvme_path") if paths and device == "nvme" else None
            zero[name] = {"device": device} | ({"nvme_path": path} if path else {})
    if "zero3_save_16bit_model" in block or zero["stage"] == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = block.get("zero3_save_16bit_model", gathers)
    config = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": block.get("gradient_accumulation_steps", AUTO),
        "gradient_clipping": block.get("gradient_clipping", AUTO),
        ZERO: zero,
    }
    return config | ({precision: {"enabled": True}} if precision in ("bf16", "fp16") else {})


def _unknown(made: AccelerateFile, block: dict[str, Any]) -> list[Finding]:
    known = (FILE, *KEYS, *_TABLE["others"], *_TABLE["filters"])
    return [
        finding_of(
            "unknown_key.accelerate",
            fix=suggestion(str(name), known, text_of("repair.remove")),
            where=made.place(str(name)),
            name=name,
            block=BLOCK,
        )
        for name in block
        if name not in known
    ]


def _beside_file(made: AccelerateFile, content: dict[str, Any]) -> list[Finding]:
    return [
        finding_of("trainer_stops.accelerate", where=made.place(name), name=name, file=FILE, named=made.named)
        for name in NOT_BESIDE_FILE
        if made.named and name in content
    ]
