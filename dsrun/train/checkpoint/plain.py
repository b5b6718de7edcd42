"""Between ZeRO and plain DDP, where each rank has the whole optimizer: the Trainer's optimizer.pt.

It knows parameters by their number only, in the order of the Trainer's two groups; `trainer_order` finds that order
from the model's architecture, without its weights."""

import re
import shutil
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import deepspeed
import torch
from peft import get_peft_model_state_dict
from transformers import Trainer

from dsrun.errors import UsageError, one_line
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.refusals import refusal
from dsrun.train.checkpoint.weight_files import ExportWeight, as_in_files, stored_weights, write_file
from dsrun.train.checkpoint.zero_shards import load
from dsrun.train.model.adapters import new_tokens, select_trained
from dsrun.train.model.load import AUTO_CLASS
from dsrun.train.model.parameter_groups import LearningRates
from dsrun.train.model.zero3 import outside_zero3

ADAPTER = "adapter_model.safetensors"
ADAM_STATES = ("exp_avg", "exp_avg_sq")


class TrainerOrder(NamedTuple):
    """The names of the trainable parameters, group by group, in the order of the Trainer's own optimizer; and the
    `model` that has them, without weights."""

    groups: list[list[str]]
    model: Any


def load_weights(checkpoint: Path, like: Any, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The weights in the files of `checkpoint`, by the names that the modules of the model `like` have for them. Only
    transformers' own load puts together, renames and turns what its save has taken apart. Raises UsageError where they
    are not all weights of the model, and nothing else."""
    try:
        with outside_zero3():
            asked = {"config": like.config, "dtype": dtype, "output_loading_info": True}
            model, info = type(like).from_pretrained(checkpoint, ignore_mismatched_sizes=True, **asked)
    except (OSError, RuntimeError) as error:  # no weights, or not all parts of one
        raise refusal("checkpoint.weights", checkpoint=checkpoint, wrong=one_line(error)) from error
    kinds = {kind.removesuffix("_keys"): sorted(map(str, names)) for kind, names in sorted(info.items())}
    if wrong := [f"{kind} {name}" for kind, names in kinds.items() for name in names]:
        raise refusal("checkpoint.weights", checkpoint=checkpoint, wrong=", ".join(wrong[:3]))
    found: dict[str, torch.Tensor] = model.state_dict()
    return found


def check_adapter(checkpoint: Path, adapted: Any) -> None:
    """Raise UsageError unless the adapter in `checkpoint` has all weights of the one of `adapted`, and no others."""
    # Whether embeddings are saved beside it may follow from what the Hub answers.
    own = get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
    stored = {each.name for each in stored_weights(checkpoint, ADAPTER)}
    if wrong := sorted((own - stored) | (stored - own - adapted.state_dict().keys())):
        raise refusal("checkpoint.weights", checkpoint=checkpoint, wrong=", ".join(wrong[:3]))


def trainer_order(plan: TrainingPlan, tokenizer: Any) -> TrainerOrder:
    """Those of `plan`'s model: the groups with and without weight decay, or one for each learning rate."""
    spec = plan.recipe.spec
    with torch.device("meta"):
        model = AUTO_CLASS[plan.task].from_config(plan.config, trust_remote_code=spec.trust_remote_code)
        if len(tokenizer) > model.config.get_text_config().vocab_size:
            # On this device there are no numbers to take a mean of.
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        tokens = new_tokens(plan.config.get_text_config().vocab_size, tokenizer, spec)
        model = select_trained(model, spec, plan.task, tokens)
    rates = LearningRates.of(spec)
    if rates:
        return TrainerOrder([each.names for each in rates.groups(model, plan.recipe.value("learning_rate"))], model)
    # The method looks at the model alone.
    decayed = set(Trainer.get_decay_parameter_names(None, model))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return TrainerOrder([[n for n in trained if n in decayed], [n for n in trained if n not in decayed]], model)


class PlainCheckpoint:
    """A checkpoint of plain DDP, read parameter by parameter as `shards.ZeroCheckpoint` is."""

    def __init__(self, checkpoint: Path, order: TrainerOrder) -> None:
        groups = order.groups
        self.checkpoint = checkpoint
        if not (checkpoint / "optimizer.pt").is_file():
            raise UsageError(f"{checkpoint}: it has no optimizer.pt, so nothing could go on from it")
        saved = load(checkpoint / "optimizer.pt")
        self._states: dict[int, dict[str, Any]] = saved["state"]
        self.param_groups: list[dict[str, Any]] = saved["param_groups"]
        counts, wanted = [len(group["params"]) for group in self.param_groups], list(map(len, groups))
        if counts != wanted:
            raise refusal("checkpoint.groups", checkpoint=checkpoint, counts=counts, wanted=wanted)
        self._numbers = {name: i for i, name in enumerate(name for group in groups for name in group)}
        for name, number in self._numbers.items():
            # Another optimizer, or a parameter that no batch has reached yet.
            if not self._states.get(number, {}).keys() >= set(ADAM_STATES):
                raise refusal("checkpoint.no_adam", checkpoint=checkpoint, name=name)
        # Of the adapter alone, or of the model: another file may hold DPO's reference, under the same names.
        adapter = stored_weights(checkpoint, ADAPTER)
        self._weights = {each.name: each.read() for each in adapter} or load_weights(checkpoint, order.model)

        # Their shapes are those of the parameters.
        self.parameters: dict[str, torch.Tensor] = {n: self._states[i]["exp_avg"] for n, i in self._numbers.items()}
        first = self._states[0]
        self.states = tuple(name for name, value in first.items() if torch.is_tensor(value) and value.dim() > 0)
        self.step = int(first["step"])
        counted = {"global_steps": self.step, "global_samples": 0, "skipped_steps": 0}
        self.counters: dict[str, Any] = {**counted, "ds_version": deepspeed.__version__}
        self.loss_scaler: dict[str, Any] = {}

    def read(self, name: str, state: str = "fp32") -> torch.Tensor:
        if state != "fp32":
            return self._states[self._numbers[name]][state].float().clone()
        saved = self._weights.get(in_adapter(name), self._weights.get(name))
        if saved is None:
            raise UsageError(f"{self.checkpoint}: {name} is not in its weights", fix="resume with --zero 0")
        return saved.float()


def in_adapter(name: str) -> str:
    """The name that an adapter's weight has in its file: without that of the adapter (peft, save_pretrained)."""
    name = name.replace(".modules_to_save.default.", ".")
    name = name.replace("_magnitude_vector.default.weight", "_magnitude_vector")
    return re.sub(r"(\.lora_\w+|\.trainable_tokens_delta)\.default(?=\.|$)", r"\1", name)


def write_plain(source: Any, checkpoint: Path, folder: Path, order: TrainerOrder, *, beat: Callable[[], None]) -> None:
    """Write weights and optimizer.pt as a Trainer without DeepSpeed loads them: the fp32 weights that ZeRO trained, and
    the whole optimizer, which each rank will hold in memory as well."""
    lora = (checkpoint / ADAPTER).is_file()
    weights = [
        ExportWeight(in_adapter(name) if lora else name, torch.float32, tuple(p.shape), partial(source.read, name))
        for name, p in source.parameters.items()
    ]
    known = {weight.name for weight in weights} | set(source.aliases)
    if lora:
        weights += [weight for weight in stored_weights(checkpoint, ADAPTER) if weight.name not in known]
    else:
        if set(order.model.state_dict()) - known:
            rest = load_weights(checkpoint, order.model).items()
            weights += [ExportWeight(n, w.dtype, tuple(w.shape), w.detach) for n, w in rest if n not in known]
        weights = as_in_files(weights, order.model)
    write_file(folder / (ADAPTER if lora else "model.safetensors"), weights, beat=beat)
    for name in ("config.json", "generation_config.json", "adapter_config.json"):
        if (checkpoint / name).is_file():
            shutil.copy2(checkpoint / name, folder / name)
    torch.save(_optimizer(source, order.groups), folder / "optimizer.pt")


def _optimizer(source: Any, groups: list[list[str]]) -> dict[str, Any]:
    ordered = [name for group in groups for name in group]
    if missing := set(ordered) ^ set(source.parameters):
        raise UsageError(f"{min(missing)} is trained in one of the checkpoint and this run, and not in the other")
    step = torch.tensor(float(source.step))
    state = {
        number: {"step": step.clone(), **{each: source.read(name, each) for each in source.states}}
        for number, name in enumerate(ordered)
    }
    hyper = source.param_groups
    numbers = iter(state)
    saved = []
    for index, group in enumerate(groups):
        # DeepSpeed's Adam has one group; in the Trainer's, norms and biases do not decay.
        base = hyper[index] if index < len(hyper) else {**hyper[0], "weight_decay": 0.0}
        saved.append({**base, "params": list(islice(numbers, len(group)))})
    return {"state": state, "param_groups": saved}
