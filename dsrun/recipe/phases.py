"""What a run is asked to do: train, evaluate, predict."""

from __future__ import annotations

from dsrun.recipe.recipe import Recipe

FLAGS = {"do_train": "train", "do_eval": "validation", "do_predict": "test"}


def phases(recipe: Recipe) -> frozenset[str]:
    """What to do: `train`, `validation`, `test`. Naming none of --do-train, --do-eval, --do-predict means training,
    and evaluating where there is validation data; either is left out where its flag says false."""
    asked = {phase for flag, phase in FLAGS.items() if recipe.hf.get(flag)}
    if not asked:
        refused = {phase for flag, phase in FLAGS.items() if recipe.hf.get(flag) is False}
        asked = {"train", "validation"} - refused
    return frozenset(asked | ({"validation"} if evaluates_while_training(recipe) else set()))


def evaluation_is_asked_for(recipe: Recipe) -> bool:
    """Whether the run cannot do without validation data."""
    return bool(recipe.hf.get("do_eval")) or evaluates_while_training(recipe)


def evaluates_while_training(recipe: Recipe) -> bool:
    """Whether flags ask for evaluation during training."""
    strategy = str(recipe.hf.get("eval_strategy", "no"))
    return (
        strategy != "no"
        or recipe.spec.early_stopping is not None
        or bool(recipe.hf.get("load_best_model_at_end"))
        or recipe.hf.get("save_strategy") == "best"
    )
