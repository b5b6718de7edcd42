"""The data, model and plugin files a run names: looked at before any worker starts. Of a model in a local folder,
whether it is one, and whether it writes text.

What is told here from a few small files takes an instant; told by the libraries it comes a minute later."""

import re
from pathlib import Path
from typing import Any, Final

from dsrun.errors import UsageError, nearest
from dsrun.recipe.mixture import naming, specs_of
from dsrun.recipe.preflight.data_files import FORMATS, check_data_file, suffix_of
from dsrun.recipe.recipe import Recipe, has_data
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.refusals import Refusals
from dsrun.system.files import as_in_wsl, is_there, nearest_existing, parse_json, read_bytes

CHAT_TEMPLATES: Final = ("chatml",)
"""The chat templates that dsrun has itself."""
OWNED: Final = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
DEMO_MODELS: Final = {"demo-t5": "seq2seq", "demo-llama": "causal-lm"}
"""The models that dsrun has itself, and what they learn."""


def check_inputs(recipe: Recipe) -> None:
    """Look at all that a run reads, as far as it is on this machine, and at whether it can learn the data. Raises
    UsageError for the first thing that is wrong."""
    check_files(recipe.spec, generation_config=recipe.hf.get("generation_config"))
    if has_data(recipe.spec):
        from dsrun.recipe.preflight.data import check_data  # a demo brings its own

        check_data(recipe)


def check_files(spec: TrainSpec, *, generation_config: str | None = None) -> None:
    """Look at every local file and folder the spec names, and at that of the Trainer's --generation-config. Raises
    UsageError for the first that is missing, empty, of no known kind, or not what its suffix says."""
    if spec.hub == "modelscope":
        check_owners(spec)
    _check_model(spec)
    if spec.teacher:
        _check_model(of_teacher(spec), "--teacher")
    for name, flag in (
        (spec.tokenizer, "--tokenizer"),
        (spec.config_name, "--config-name"),
        (generation_config, "--generation-config"),
    ):
        if name and is_path(name) and not is_there(Path(name).expanduser()):
            raise UsageError(f"{flag} {name} does not exist")
    if spec.chat_template and spec.chat_template not in CHAT_TEMPLATES:
        _check_template(spec.chat_template)
    for name, each in specs_of(spec).items():
        with naming(name):
            _check_data(each)
    if spec.sample_prompts:
        from dsrun.recipe.rows.readers import first_rows  # few runs name prompts

        _check_named_file(Path(spec.sample_prompts).expanduser(), f"--sample-prompts {spec.sample_prompts}")
        first_rows(Path(spec.sample_prompts).expanduser())
    if spec.plugin:
        from dsrun.recipe.preflight.plugin_file import find_plugin

        find_plugin(spec.plugin)
    if spec.offload == "nvme" and spec.nvme_path:
        _check_nvme(spec.nvme_path)


def check_owners(spec: TrainSpec) -> None:
    """Raise UsageError for a name that ModelScope cannot have: all there have an owner, on the Hub some have none."""
    for flag, name in (
        ("--model", spec.model),
        ("--teacher", spec.teacher),
        ("--tokenizer", spec.tokenizer),
        ("--config-name", spec.config_name),
        *(("--dataset", each.dataset) for each in specs_of(spec).values()),
    ):
        if name and name not in DEMO_MODELS and not is_path(name) and not OWNED.fullmatch(name):
            what = f"{flag} {name}: a name on ModelScope is OWNER/NAME"
            raise UsageError(what, fix=f"AI-ModelScope/{name} may be a copy of the Hub's" if "/" not in name else None)


def _check_data(spec: TrainSpec) -> None:
    if spec.dataset and is_path(spec.dataset):
        path = Path(spec.dataset).expanduser()
        if not is_there(path):
            raise UsageError(f"--dataset {spec.dataset} does not exist", fix=_near(path))
        if path.is_file():
            check_data_file(path)
    if spec.train_file or spec.validation_file or spec.test_file:
        from dsrun.recipe.preflight.splits import given_files  # a demo brings its own

        for split, files in given_files(spec).items():
            for file in files:
                _check_named_file(file, f"--{split}-file {file}")


def is_path(name: str) -> bool:
    """Whether a model or dataset name means something on this machine rather than a Hub name. `org/name` is a Hub name
    unless a folder of that name is there, as in `from_pretrained`."""
    if name.startswith(("./", "../", "/", "~")) or name in (".", ".."):
        return True
    return is_there(Path(name)) or suffix_of(Path(name)) in FORMATS


def of_teacher(spec: TrainSpec) -> TrainSpec:
    """What loads --teacher as the others load --model: as it is, in its own dtype."""
    kept = ("hub", "token", "cache_dir", "trust_remote_code", "attn_implementation")
    return TrainSpec(model=spec.teacher, weights_dtype="auto", **{name: getattr(spec, name) for name in kept})


def _check_model(spec: TrainSpec, flag: str = "--model") -> None:
    """Raise UsageError for a local model that cannot be trained, or learned from."""
    name = spec.model
    if name in DEMO_MODELS and flag == "--teacher":
        raise UsageError(f"{flag} {name} knows nothing: a demo begins untrained", fix="train it, and name RUN/model")
    if not name or name in DEMO_MODELS:
        return
    if not is_path(name):
        refuse_no_name(name, flag)
        return
    path = Path(name).expanduser()
    if not is_there(path):
        raise UsageError(f"{flag} {name} does not exist", fix=_near(path))
    from dsrun.recipe.preflight.files import check_model_folder  # many models are of the Hub

    check_model_folder(path, spec, flag)


def refuse_no_name(name: str, flag: str = "--model") -> None:
    """Raise UsageError for a model that is no folder and can have no such name on the Hub."""
    from dsrun.models.folder import HUB_NAME  # most names are of the Hub, or a demo

    if not HUB_NAME.fullmatch(name):
        fix = as_in_wsl(name) or "a name there is owner/name"
        raise UsageError(f"{flag} {name} is neither a folder nor a name on the Hub", fix=fix)
    if name.startswith("demo-") and (meant := nearest(name, DEMO_MODELS)):
        raise UsageError(f"{flag} {name} is no demo model", fix=f"did you mean {meant}?")


def _check_named_file(path: Path, what: str) -> None:
    if not is_there(path):
        raise UsageError(f"{what} does not exist", fix=_near(path))
    if path.is_dir():
        raise UsageError(f"{what} is a folder", fix="name a file in it")
    check_data_file(path)


def _check_template(name: str) -> None:
    try:
        Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise UsageError(f"--chat-template {name}: {why}", fix="name a jinja file, or chatml") from None


def _check_nvme(name: str) -> None:
    """DeepSpeed makes the folder itself, deep in the loading of the model."""
    from tempfile import TemporaryFile

    path = Path(name).expanduser()
    try:
        with TemporaryFile(dir=path if path.is_dir() else nearest_existing(path)):
            pass
    except OSError as error:
        fix = "give a folder on a local NVMe disk"
        raise UsageError(f"--nvme-path {name} cannot be written: {error.strerror}", fix=fix) from error


def _near(path: Path) -> str | None:
    """Did you mean a neighbour?"""
    if of_windows := as_in_wsl(str(path)):
        return of_windows
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    close = nearest(path.name, [entry.name for entry in path.parent.iterdir()])
    return f"did you mean {path.parent / close}?" if close else None


_TEXTS = Refusals(__file__)
refused_kind = _TEXTS.error


def check_model_folder(path: Path, spec: "TrainSpec", flag: str = "--model") -> None:
    """Raise UsageError for a folder, named by `flag`, that is no model, has no weights, or is no model of text."""
    # A name on the Hub needs none of it.
    from dsrun.models.families import family_of, is_trained, other_models
    from dsrun.models.folder import has_weights as holds_weights

    what, has_weights = f"{flag} {spec.model}", spec.from_scratch or holds_weights(path)
    has_config, is_adapter = ((path / name).is_file() for name in ("config.json", "adapter_config.json"))
    found = {"is_folder": path.is_dir(), "has_config": has_config, "is_adapter": is_adapter}
    _TEXTS.check("folder", what=what, flag=flag, has_weights=has_weights, **found)
    if not spec.from_scratch and not any(path.glob("*.safetensors")):
        from dsrun.models.pickled import refuse_code  # few models have no safetensors

        for file in sorted(path.glob("pytorch_model*.bin")):
            refuse_code(file)
    config = _config(path / "config.json")
    kind = config.get("model_type")
    # Code that comes with a model may make of it what it likes.
    if kind in other_models() and not is_trained(config) and "auto_map" not in config:
        raise refused_kind("kind.neither", what=what, kind=kind)
    if family_of(kind).reads_both_ways and not config.get("is_decoder") and not spec.config_override:
        raise refused_kind("kind.both_ways", what=what, kind=kind)
    if spec.task == "dpo" and config.get("is_encoder_decoder"):
        raise refused_kind("kind.dpo", what=what, kind=kind)


def _config(file: Path) -> dict[str, Any]:
    try:
        config = parse_json(read_bytes(file))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", fix="ask its owner for it") from None
    except ValueError as error:
        raise UsageError(f"{file} cannot be read: {error}", fix="get the model again") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file} is not a model's config: it holds no settings", fix="get the model again")
    return config
