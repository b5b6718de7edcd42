"""Values of other tools' files that are more than copied: data, ZeRO, shares. Each function takes the run, the key, its
value and where that stands; other_tools.toml names it."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsrun.errors import UsageError
from dsrun.recipe.compat.removed import row_of, tables
from dsrun.recipe.preflight.data_files import FORMATS
from dsrun.recipe.preflight.splits import NAMES
from dsrun.system.files import parse_json

if TYPE_CHECKING:
    from dsrun.recipe.compat.imported_run import ImportedRun

BUILDERS = ("json", "csv", "parquet", "text", "arrow")
"""What `datasets` calls formats: the files are named elsewhere."""
STAGE = re.compile(r"(?:zero|z|stage)[_-]?([0-3])")


def datasets(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """A list of data sets, each a mapping or a path."""
    for number, entry in enumerate(value if isinstance(value, list) else [value]):
        _add(run, f"{run.tool}'s data", entry if isinstance(entry, dict) else {"path": entry}, f"{where}[{number}]")


def validation_sets(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """The same of data for evaluation."""
    before = len(run.sets)
    entries = value if isinstance(value, list) else [value]
    datasets(run, key, [each if isinstance(each, str) else {**each, "split": None} for each in entries], where)
    _to_validation(run, before, where)


def _to_validation(run: "ImportedRun", first: int, where: str) -> None:
    """Take the sets from `first` on for evaluation."""
    found, run.sets[first:] = run.sets[first:], []
    if files := [file for each in found for file in each.get("train_file", ())]:
        run.give("validation_file", files, where)
    if any("dataset" in each for each in found):
        run.notes.append(f"{where}: dsrun evaluates on the validation split of the dataset: write validation_file")


def _add(run: "ImportedRun", keys: str, entry: dict[str, Any], where: str) -> None:
    values = run.part(keys, entry, where, values={}).values
    if "dataset" in values and "train_file" in values:
        run.refused.append(f"{where}: files of a dataset of the Hub: download them, and name them as data_files alone")
    joined = (values.get("text_column"), values.pop("source_prefix", None))
    if joined == ("instruction", "input"):  # dsrun joins them itself
        values.pop("text_column")
        values.pop("summary_column", None)
    elif joined[1]:
        run.refused.append(f"{where}: columns {joined[0]} and {joined[1]}: rename them to instruction and input")
    run.sets.append(values)


def stream(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """Running text that is read while training."""
    run.kinds.add("text")
    run.give("streaming", True, where)
    datasets(run, key, value, where)


def mixture(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """Data sets as TRL lists them, or by name with a share of each."""
    listed = value.get("datasets") if isinstance(value, dict) else value
    if listed is None:
        listed = [{"id": name, "weight": weight} for name, weight in value.items()]
    elif isinstance(value, dict):
        run.part("TRL's mixture", value, where)
    datasets(run, key, listed, where)


def row_type(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """How axolotl reads a row: a name, or the names of columns."""
    if isinstance(value, dict):
        run.part("axolotl's rows", value, where)
    else:
        run.take(row_of(tables()["axolotl's types"], str(value)) or {}, key, value, where)


def modelscope(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """A dataset of ModelScope, where none of the Hub is named beside it."""
    if "dataset" not in run.values:
        run.refused.append(f"{where} {value}: write hub: modelscope and dataset: {value} (or --drop dataset)")


def data_path(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """A file, a folder, a name on the Hub, or the name of a format."""
    path = Path(str(value))
    if "://" in str(value):
        run.refused.append(f"{where} {value}: dsrun reads files and the Hub: download it")
    elif path.is_dir():
        run.give("dataset", value, where)
    elif path.suffix in FORMATS or path.is_file():
        run.give("train_file", [value], where)
    elif value not in BUILDERS:
        run.give("dataset", value, where)


def split(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """A split to train on; dsrun takes the one of that name, or its first rows."""
    found = re.fullmatch(r"([\w-]+)(?:\[:(\d+)\])?", str(value))
    if not found or found[1] not in NAMES["train"]:
        instead = f"write its rows into a file (or --drop {key})"
        run.refused.append(f"{where} {value}: dsrun trains on the whole split train: {instead}")
    elif found[2]:
        run.give("max_train_samples", int(found[2]), where)


def info_sets(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """Names of LLaMA-Factory's dataset_info.json, to train on or to evaluate on."""
    names = value if isinstance(value, list) else [each.strip() for each in str(value).split(",")]
    wanted = str(run.config.get("dataset_dir") or "data")
    folders = [Path(wanted), run.folder / wanted, run.folder]
    found = next((each for each in folders if (each / "dataset_info.json").is_file()), None)
    try:
        known = dict(parse_json((found / "dataset_info.json").read_bytes())) if found else {}
    except (TypeError, ValueError) as error:
        raise UsageError(f"{found}/dataset_info.json is not an object of JSON: {error}") from None
    before = len(run.sets)
    for name in names:
        if name not in known:
            why = f"is not in {found}/dataset_info.json" if found else f"there is no {wanted}/dataset_info.json"
            run.refused.append(f"{where} {name}: {why}: write dataset_dir: DIR (or --drop {key}, and add train_file)")
            continue
        entry = known[name]
        _add(run, "LLaMA-Factory's data", entry, f"{found}/dataset_info.json: {name}")
        if files := run.sets[-1].get("train_file"):
            run.sets[-1]["train_file"] = [str((found or Path()) / file) for file in files]
    weights = str(run.config.get("interleave_probs") or "").split(",")
    if key == "eval_dataset":
        _to_validation(run, before, where)
    elif len(weights) == len(run.sets) > 1:
        for each, weight in zip(run.sets, weights, strict=True):
            each["weight"] = float(weight)


def share(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """A share of the training data to evaluate on; dsrun takes whole percents."""
    if 0 < value < 1:
        percent = max(1, round(100 * value))
        why = "" if percent == 100 * value else f"{100 * value:g}% there"
        run.give("validation_split_percentage", percent, where, why)
    elif value:
        run.refused.append(f"{where} {value}: dsrun holds out a share: write one, such as 0.05 (or --drop {key})")


def times(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """When axolotl saves or evaluates, the latter with data for it alone. Of how often in an epoch dsrun takes a share
    of all steps."""
    epochs, what = float(run.config.get("num_epochs") or 1), key[:4]
    if what == "eval" and not (run.config.get("val_set_size") or run.config.get("test_datasets")):
        run.notes.append(f"{where}: no data is held out to evaluate on")
        return
    if not key.endswith("_per_epoch"):
        run.give(key, value, where)
    elif value == 1:
        run.give(f"{what}_strategy", "epoch", where)
    elif value:
        run.give(f"{what}_strategy", "steps", where)
        run.give(f"{what}_steps", round(1 / (value * epochs), 6), where, f"{value} times an epoch")


def zero(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """A DeepSpeed configuration: the file if it is there, else the stage that its name tells."""
    if isinstance(value, dict) or Path(value).is_file():
        run.give("deepspeed", value, where)
        return
    name = Path(value).name.lower()
    if not (stage := STAGE.search(name)):
        run.refused.append(f"{where} {value}: there is no such file, and its name tells no ZeRO stage")
        return
    run.give("zero", stage[1], where, f"of {value}, which is not here")
    if "offload" in name:
        run.give("offload", "cpu", where, f"of {value}, which is not here")


def sharding(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """FSDP's settings: ZeRO shards the same."""
    text = str(value).lower()
    if value:
        stage = "2" if "grad_op" in text or "'reshard_after_forward': false" in text else "3"
        run.give("zero", stage, where, "shards as FSDP does")
    if "offload_params': true" in text or "'offload'" in text:
        run.give("offload", "cpu", where, "as FSDP does")


def rates(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """Groups of modules with a learning rate of their own."""
    run.give("lr_for", [f"*{name}*={group['lr']}" for group in value for name in group["modules"]], where)


def template(run: "ImportedRun", key: str, value: Any, where: str) -> None:
    """A chat template: a file, chatml, one by name, or its text."""
    if "{" in str(value):
        run.refused.append(f"{where}: a template as text: write it into a file, and name that (or --drop {key})")
    elif value == "chatml" or str(value).endswith(".jinja") or Path(str(value)).is_file():
        run.give("chat_template", value, where)
    elif value not in ("tokenizer_default", "jinja", "default", "empty"):
        shows = "`dsrun prepare --config run.yaml` shows its text"
        run.notes.append(f"{where} {value}: the tokenizer's own template is used; {shows}")
