"""Values of a model's config that the user sets, checked by the config's own class, which also makes anew what follows
from them: --config-override, --config-overrides and --rope-scaling."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import reduce
from typing import Any, NamedTuple

from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters

from dsrun.errors import UsageError, did_you_mean, one_line
from dsrun.recipe.parsed_value import config_values, rope_settings
from dsrun.recipe.recipe_spec import TrainSpec

ROPE, TRAINED, POSITIONS = "rope_parameters", "original_max_position_embeddings", "max_position_embeddings"
# What of the old rotary positions another kind of scaling takes out; the model was trained with all else.
SCALING = RopeParameters.__annotations__.keys() - {"rope_theta", "partial_rotary_factor", "mrope_section", TRAINED}


class SetValue(NamedTuple):
    """A value for the key at `path` in a part of a config, () for the whole; `flag` is what the user wrote."""

    flag: str
    path: tuple[str, ...]
    value: Any
    part: tuple[str, ...] = ()


def with_values(config: Any, spec: TrainSpec) -> Any:
    """The config with what the user has set in it. Keys of its text part also count without their prefix; one that both
    have is set in both.

    Raises UsageError for a key that the config does not have, a value of another type, what the config's class refuses,
    and what it would undo."""
    asked = [SetValue(flag, tuple(key.split(".")), value) for flag, key, value in config_values(spec)]
    asked = [*_scaled(config, spec), *asked]
    if not asked:
        return config
    new = deepcopy(config)
    placed = [found for each in asked for found in _places(config, each)]
    flags = " ".join(dict.fromkeys(each.flag for each in asked))
    for each in placed:
        with _refusals(each.flag):
            _put(new, each)
    for part in {each.part for each in placed}:
        given = {each.path[0] for each in placed if each.part == part}
        _drop_derived(_at(config, part), _at(new, part), given, flags)
    with _refusals(flags, rope=any(ROPE in each.path for each in placed)):
        made = type(config).from_dict(new.to_dict())
    for each in {(each.part, each.path): each for each in placed}.values():
        found = _at(made, each.part + each.path)
        if not isinstance(each.value, dict) and found != each.value:
            switch = (*each.part, *each.path[:-1], f"use_{each.path[-1]}")
            fix = f"--config-override {'.'.join(switch)}=true" if _at(made, switch) is False else None
            raise UsageError(f"{each.flag}: this config makes it {found!r} again", fix=fix)
    return made


def _at(config: Any, path: tuple[str, ...]) -> Any:
    """What a config holds at a path: a part of it, an object or a value."""
    return reduce(lambda at, name: at.get(name) if isinstance(at, dict) else getattr(at, name, None), path, config)


def _known(holder: Any) -> set[str]:
    """The keys of a part of a config, or of an object in it."""
    if isinstance(holder, dict):
        return set(holder)
    names = set(holder.to_dict())
    return names | set(type(holder).attribute_map) | ({"rope_scaling"} if ROPE in names else set())


def _places(config: Any, asked: SetValue) -> Iterator[SetValue]:
    """What was asked for with the parts of the config that have the key. Raises UsageError where none has it."""
    text = config.get_text_config()
    parts = [(), *((name,) for name, part in vars(config).items() if part is text)]
    homes = [part for part in parts if asked.path[0] in _known(_at(config, part))]
    if not homes:
        known = set().union(*(_known(_at(config, part)) for part in parts))
        # Where config.json of earlier versions of transformers has rope_theta.
        inside = f"{ROPE}.{asked.path[0]}" if asked.path[0] in (getattr(text, ROPE, None) or ()) else ""
        fix = f"did you mean {inside}?" if inside else did_you_mean(asked.path[0], known, "see config.json")
        raise UsageError(f"{asked.flag}: the config of {config.model_type} models has no {asked.path[0]!r}", fix=fix)
    for home in homes:
        part, path = home, asked.path
        while len(path) > 1 and isinstance(_at(config, (*part, path[0])), PreTrainedConfig):
            part, path = (*part, path[0]), path[1:]
        holder = _at(config, part)
        names = {"rope_scaling": ROPE, **type(holder).attribute_map}
        value = asked.value
        was = _at(holder, path)
        if isinstance(was, float) and type(value) is int:
            value = float(value)
        elif type(was) is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        yield SetValue(asked.flag, (names.get(path[0], path[0]), *path[1:]), value, part)


def _put(config: Any, each: SetValue) -> None:
    holder = _at(config, each.part)
    for depth, name in enumerate(each.path):
        if not isinstance(holder, PreTrainedConfig | dict):
            raise UsageError(f"{each.flag}: {'.'.join(each.path[:depth])} holds no keys, but {holder!r}")
        known = _known(holder)
        # Where kinds of layers have objects of their own, what scaling needs is to be set in each.
        if each.path[0] == ROPE and depth and not any(isinstance(value, dict) for value in holder.values()):
            known |= set(RopeParameters.__annotations__)
        if name not in known:
            fix = did_you_mean(name, known, f"it has {', '.join(sorted(known))}")
            raise UsageError(f"{each.flag}: {'.'.join((*each.part, *each.path[:depth]))} has no {name!r}", fix=fix)
        if depth < len(each.path) - 1:
            holder = _at(holder, (name,))
    was, value = _at(holder, (name,)), each.value
    if isinstance(value, dict) and each.path[0] == ROPE:
        was = was or {}
        kinds = sorted(key for key, each in was.items() if isinstance(each, dict))
        if not value.keys() >= {*kinds}:
            fix = f"set {' or '.join(f'{ROPE}.{kind}' for kind in kinds)}"
            raise UsageError(f"{each.flag}: this model has rotary positions for each kind of its layers", fix=fix)
        same = value.get("rope_type") == was.get("rope_type")
        value = {key: kept for key, kept in was.items() if same or key not in SCALING} | value
    if isinstance(holder, dict):
        holder[name] = value
    else:
        # The class checks the type; one of a model's own need not.
        setattr(holder, name, value)
        if not hasattr(holder, "validate") and None not in (was, value) and not isinstance(value, type(was)):
            raise TypeError(f"it is a {type(was).__name__}, not a {type(value).__name__}")


def _drop_derived(old: Any, new: Any, given: set[str], flags: str) -> None:
    """Take out of `new` the lists with a value per layer (`layer_types`, `no_rope_layers` …) that the class computes
    from other values, so that it does so again. Raises UsageError for one of the model's own that no longer fits."""
    stored = old.to_dict()
    lists = {name for name, value in stored.items() if "layer" in name and isinstance(value, list)} - given
    bare = {name: value for name, value in stored.items() if name not in lists}
    computed = None
    with suppress(Exception):  # a class may not be able to: Exaone 4's from `sliding_window_pattern: "LLLG"`
        computed = type(old).from_dict(bare) if lists else None
    count = type(old).attribute_map.get("num_hidden_layers", "num_hidden_layers")
    layers = stored.get(count)
    for name in sorted(lists):
        if getattr(computed, name, None) == stored[name]:
            setattr(new, name, None)
        elif layers != getattr(new, count, layers) and len(stored[name]) == layers:
            fix = f"set {name}='[…]' too"
            raise UsageError(f"{flags}: this model's {name} has a value for each of its {layers} layers", fix=fix)


def _scaled(config: Any, spec: TrainSpec) -> list[SetValue]:
    """What --rope-scaling sets: the rotary positions, of the layers that see everything where kinds of layers have
    their own, and as many positions as there are then."""
    if spec.rope_scaling is None:
        return []
    path: tuple[str, ...] = (ROPE,)
    text, flag = config.get_text_config(), "--rope-scaling"
    rope, settings = getattr(text, ROPE, None), rope_settings(spec.rope_scaling)
    if not rope:
        raise UsageError(f"{flag}: {config.model_type} models have no rotary positions", fix="leave it out")
    if "full_attention" in rope:
        rope, path = rope["full_attention"], (ROPE, "full_attention")
    trained = settings.get(TRAINED) or rope.get(TRAINED) or getattr(text, POSITIONS, None)
    # Dynamic scaling computes its base from the length that the model was trained with, and reads it there.
    if settings["rope_type"] in ("default", "dynamic") or not trained or "factor" not in settings:
        return [SetValue(flag, path, settings)]
    if settings["rope_type"] != "linear":
        settings[TRAINED] = trained
    return [SetValue(flag, path, settings), SetValue(flag, (POSITIONS,), round(trained * float(settings["factor"])))]


@contextmanager
def _refusals(flags: str, *, rope: bool = False) -> Iterator[None]:
    """Errors of a config's class as one line. Of scaling it only warns, of keys that its type does not read too."""
    notes: list[str] = []
    log, handler = logging.getLogger("transformers.modeling_rope_utils"), logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    # Also where TRANSFORMERS_VERBOSITY or a program hides its warnings, which stay hidden then.
    level, propagate, shown = log.level, log.propagate, log.isEnabledFor(logging.WARNING)
    log.setLevel(logging.WARNING)
    log.propagate = propagate and shown
    log.addHandler(handler)
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # a class of the model's own may fail in any way
        cause = error.__cause__ or error
        raise UsageError(f"{flags}: {cause.args[0] if isinstance(cause, KeyError) else one_line(cause)}") from error
    finally:
        log.removeHandler(handler)
        log.propagate = propagate
        log.setLevel(level)
    if rope and any(note.startswith("Missing validation function") for note in notes):
        raise UsageError(f"{flags}: no such kind of scaling", fix=f"there are {', '.join(sorted(ROPE_INIT_FUNCTIONS))}")
    wrong = [note for note in notes if "rope_parameters`" in note and not note.startswith("The explicitly set")]
    if rope and wrong:
        raise UsageError(f"{flags}: {wrong[0]}", fix="rope_parameters.rope_type says how positions are scaled")
