"""Configurations and what the linter finds in them, as the tests of its rules ask."""

import json

from dsrun.zero.lint.config_check import check

MICRO = {"train_micro_batch_size_per_gpu": 4}
FILLED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
CLIP = {"gradient_clipping": 1.0}


def found(config, **known):
    """(level, code, place) of everything that is found."""
    return [(each.level, each.code, each.where.partition(" ")[0]) for each in check(json.dumps(config), **known)]


def only(config, code, **known):
    """The one finding of this code."""
    (finding,) = [each for each in check(json.dumps(config, indent=1), **known) if each.code == code]
    return finding


def zero(stage, **keys):
    return {**MICRO, **CLIP, "zero_optimization": {"stage": stage, **keys}}


def trainer(stage, **keys):
    return {**FILLED, "gradient_clipping": "auto", "zero_optimization": {"stage": stage, **keys}}
