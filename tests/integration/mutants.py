"""`mutants NAME REQUEST SCRATCH`: the program of `dsrun certify` with a fault put back that once stood in the field."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dsrun.train.certify.__main__ import main
from tests.integration.as_rank import run_to_the_end

FAULTS: dict[str, Callable[[], None]] = {}


def fault(function: Callable[[], None]) -> Callable[[], None]:
    FAULTS[function.__name__] = function
    return function


@fault
def gathered_parameters_stay_open() -> None:
    """Qwen3.5's packed forward raised in the probe, and every later save under ZeRO-3 failed."""
    from dsrun.train.model.zero3 import _Gathering

    _Gathering.close = lambda self: None


@fault
def missing_weight_is_drawn_in_silence() -> None:
    from dsrun.train.certify import small
    from dsrun.train.model import build_model

    build = small.build

    def without_one(config: Any, folder: Path, *more: Any, **named: Any) -> Any:
        model = build(config, folder, *more, **named)
        (file,) = folder.glob("*.safetensors")
        weights = load_file(file)
        del weights["model.layers.1.mlp.down_proj.weight"]
        save_file(weights, file, {"format": "pt"})
        return model

    small.build = without_one
    build_model.refuse_or_note = lambda *given, **named: []


@fault
def vision_tower_is_lost() -> None:
    from dsrun.train.model import build_model

    build_model.find_whole = lambda *given, **named: None


@fault
def rules_read_sharded_shapes() -> None:
    """Pegasus could not be loaded under ZeRO-3."""
    from dsrun.train.model import build_model

    build_model.loading = nullcontext


@fault
def own_output_embedding_is_tied_where_sharded() -> None:
    """FLAN-T5 and mT5 began, and were saved, without theirs under ZeRO-3."""
    from contextlib import contextmanager

    from transformers import modeling_utils

    from dsrun.train.model import build_model

    stock, loading = modeling_utils._tied_params_are_equal, build_model.loading

    @contextmanager
    def as_stock() -> Any:
        with loading():
            modeling_utils._tied_params_are_equal = stock
            yield

    build_model.loading = as_stock


@fault
def loss_is_divided_by_accumulation_again() -> None:
    """What the stock Trainer does with models whose loss is a sum over the global batch."""
    from dsrun.train.loop.trainer import RunTrainer

    RunTrainer.loss_is_scaled_for_ga = False


@fault
def zero_2_halves_gradients() -> None:
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer as Optimizer

    step = Optimizer.step

    def halved(self: Any, *given: Any, **named: Any) -> Any:
        for gradients in self.averaged_gradients.values():
            for each in gradients or ():
                each.mul_(0.5)
        return step(self, *given, **named)

    Optimizer.step = halved


@fault
def packed_documents_see_each_other() -> None:
    from dsrun.train.packing import probe, sampler

    def one_document(rows: list[list[torch.Tensor]], method: Any, **named: Any) -> dict[str, Any]:
        return probe_inputs([[torch.cat([each for row in rows for each in row])]], method, **named)

    probe_inputs = probe.packed_inputs
    sampler.packed_inputs = one_document


@fault
def checkpoint_of_experts_is_not_loaded() -> None:
    """Without ZeRO, transformers' Trainer looks for the experts under the names that the file does not have."""
    import transformers

    from dsrun.train.loop.trainer import RunTrainer

    RunTrainer._load_from_checkpoint = transformers.Trainer._load_from_checkpoint


@fault
def adapter_is_merged_at_half_its_scale() -> None:
    from peft.tuners.lora.layer import Linear

    delta = Linear.get_delta_weight
    Linear.get_delta_weight = lambda self, adapter: 0.5 * delta(self, adapter)


@fault
def frozen_weights_are_trained() -> None:
    """transformers has all weights trained that it loads, but for those that ZeRO-3 shards."""
    from dsrun.train.model import build_model

    build_model._freeze = lambda *given: None


@fault
def resumed_run_begins_the_data_anew() -> None:
    from dsrun.train.loop.loaders import TrainingLoader

    TrainingLoader.start_at = lambda self, micro_batch: self
    import transformers.trainer

    transformers.trainer.skip_first_batches = TrainingLoader.start_at


@fault
def sharded_model_generates_from_shards() -> None:
    """Predictions under ZeRO-3 by weights that are not those of the model."""
    from dsrun.train.loop.trainer import RunTrainer

    evaluate = RunTrainer.evaluate

    def by_other_weights(self: Any, *given: Any, **named: Any) -> Any:
        from deepspeed.runtime.zero import GatheredParameters

        if self.is_deepspeed_enabled and named["metric_key_prefix"] == "test":
            head = self.model.get_output_embeddings().weight
            with GatheredParameters([head], modifier_rank=0):
                head.data.neg_()
        return evaluate(self, *given, **named)

    RunTrainer.evaluate = by_other_weights


@fault
def router_gets_no_gradient() -> None:
    from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

    forward = MixtralTopKRouter.forward
    MixtralTopKRouter.forward = torch.no_grad()(forward)


@fault
def adapters_leave_layers_out() -> None:
    """What a list of names from another family does, or a PEFT that takes --lora-targets otherwise."""
    from dsrun.train.model import adapters

    adapters.lora_targets = lambda spec: ["q_proj", "v_proj"]


@fault
def random_states_are_not_resumed() -> None:
    from dsrun.train.loop.trainer import RunTrainer

    RunTrainer._load_rng_state = lambda self, checkpoint: None


@fault
def none() -> None:
    pass


if __name__ == "__main__":
    name, request, scratch = sys.argv[1:]
    FAULTS[name]()
    json.loads(request)
    run_to_the_end(main, request, scratch)
