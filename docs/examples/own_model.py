"""A model and data of your own in a script: it learns to add numbers.

dsrun launch --nproc 2 --output runs/sums -- own_model.py 40

The same line resumes after a failure or a signal, on any number of GPUs.
"""

from __future__ import annotations

import sys

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dsrun.train import Trainer

SYMBOLS = ["</s>", *"0123456789+="]


def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(SYMBOLS)}, unk_token="</s>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="</s>")


def sums(low: int, high: int) -> list[dict[str, str]]:
    """Rows as in data files; {"input_ids": […], "labels": […]} does as well."""
    return [{"prompt": f"{a}+{b}=", "completion": f"{a + b}"} for a in range(low, high) for b in range(50)]


def main(steps: int) -> None:
    config = LlamaConfig(
        vocab_size=len(SYMBOLS), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    trainer = Trainer(
        lambda: LlamaForCausalLM(config),
        tokenizer(),
        config=config,
        train=sums(0, 50),
        validation=sums(50, 52),
        zero=2,
        global_batch_size=32,
        learning_rate=1e-3,
        max_steps=steps,
        save_every=10,
        logging_steps=1,
    )
    trainer.train()
    model = trainer.save()
    if trainer.is_main:
        print(f"the model is in {model}, its loss {trainer.metrics['eval_loss']:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
