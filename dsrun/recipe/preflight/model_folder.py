"""A model in a local folder: whether it is one, and whether it writes text.

What is told here from a few small files takes an instant; told by the libraries it comes a minute later.
"""

from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.refusals import Refusals
from dsrun.system.files import parse_json, read_bytes

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
