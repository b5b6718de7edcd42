"""TrainSpec: everything dsrun itself asks about a training run.

Each option is declared once, here. The command line, the keys of run.yaml, their validation, `--help` and
docs/train.md are derived from these fields; the flags of Seq2SeqTrainingArguments stand beside them as data
in hf_flags.json (see `dsrun.recipe.flags`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dsrun.options import option

# The groups in the order of --help and of docs/train.md.
TITLES = {
    "model": "Model",
    "zero": "ZeRO",
    "batch": "Batch",
    "data": "Data",
    "lora": "LoRA",
    "survive": "Checkpoints and restarts",
    "run": "Run",
}


@dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """What a training run needs, apart from the Transformers training arguments.

    `example_scripts` marks a flag that exists so that command lines of the Transformers example scripts run unchanged.
    """

    # model
    model: str | None = option(
        None,
        "model to train: a local folder, a Hub name, or demo-t5 / demo-llama",
        group="model",
        aliases=("model_name_or_path",),
        metavar="NAME|DIR",
    )
    task: str = option(
        "auto", "what the model learns; auto reads it from the model's config", choices=("auto", "seq2seq", "causal-lm")
    )
    from_scratch: bool = option(False, "initialise from the model's config instead of loading weights")
    model_config: list[str] = option([], "overrides of the model's config, with --from-scratch", metavar="KEY=VALUE")
    weights_dtype: str = option(
        "float32",
        "dtype the weights are loaded in; auto keeps the checkpoint's own",
        aliases=("dtype", "torch_dtype"),
        choices=("float32", "bfloat16", "float16", "auto"),
    )
    attn_implementation: str | None = option(None, "attention kernel: sdpa, eager, flash_attention_2 …", metavar="NAME")
    resize_position_embeddings: bool | None = option(
        None, "stretch learned position embeddings to --max-source-length", example_scripts=True
    )
    config_name: str | None = option(
        None, "model config, if not the model's own", metavar="NAME|DIR", example_scripts=True
    )
    config_overrides: str | None = option(
        None, "overrides of the model's config as key=value,key=value", metavar="LIST", example_scripts=True
    )
    model_type: str | None = option(
        None, "architecture to initialise from scratch when no --model is given", metavar="TYPE", example_scripts=True
    )
    tokenizer: str | None = option(
        None, "tokenizer, if not the model's own", aliases=("tokenizer_name",), metavar="NAME|DIR"
    )
    use_fast_tokenizer: bool = option(True, "use the Rust tokenizer where there is one", example_scripts=True)
    model_revision: str = option("main", "branch, tag or commit of a Hub model", metavar="REV", example_scripts=True)
    token: str | None = option(
        None, "Hub token; better left to `hf auth login` or HF_TOKEN", metavar="TOKEN", example_scripts=True
    )
    trust_remote_code: bool = option(
        False, "run Python code that comes with a Hub model or dataset", example_scripts=True
    )
    cache_dir: str | None = option(None, "where models and datasets are cached", metavar="DIR", example_scripts=True)

    # zero
    zero: str | None = option(
        None,
        "ZeRO stage: 1 shards optimizer states, 2 gradients too, 3 parameters too; 0: plain DDP; auto: as planned",
        group="zero",
        choices=("0", "1", "2", "3", "auto"),
    )
    offload: str = option(
        "none", "move optimizer states (and ZeRO-3 parameters) to host memory or NVMe", choices=("none", "cpu", "nvme")
    )
    nvme_path: str | None = option(None, "local NVMe folder for --offload nvme", metavar="DIR")

    # batch
    global_batch_size: int | None = option(
        None, "samples per optimizer step over all GPUs; accumulation steps follow from it", group="batch"
    )
    micro_batch_size: int | None = option(
        None, "samples per GPU and forward pass; auto: the largest that fits, found by trying", metavar="N|auto"
    )

    # data
    dataset: str | None = option(
        None,
        "dataset: a Hub name, a local folder, or one data file",
        group="data",
        aliases=("dataset_name",),
        metavar="NAME|PATH",
    )
    dataset_config: str | None = option(
        None, "configuration (subset) of the dataset", aliases=("dataset_config_name",), metavar="NAME"
    )
    train_file: str | None = option(
        None,
        "training file: json, jsonl, csv, parquet, txt, or .bin tokens",
        aliases=("train_data_path",),
        metavar="FILE",
    )
    validation_file: str | None = option(None, "validation file", aliases=("valid_data_path",), metavar="FILE")
    test_file: str | None = option(None, "test file, for --do-predict", metavar="FILE")
    source_lang: str | None = option(None, "source language key or code", metavar="LANG")
    target_lang: str | None = option(None, "target language key or code", metavar="LANG")
    lang: str | None = option(
        None, "language code for multilingual summarization models", metavar="LANG", example_scripts=True
    )
    source_prefix: str | None = option(None, "text put before every source, as T5 expects", metavar="TEXT")
    text_column: str | None = option(None, "column of the source text", metavar="NAME")
    summary_column: str | None = option(None, "column of the target text", aliases=("target_column",), metavar="NAME")
    max_length: int | None = option(None, "tokens per sequence: the source of seq2seq, the block of causal LM")
    max_source_length: int | None = option(None, "tokens per source")
    max_target_length: int | None = option(None, "tokens per target")
    val_max_target_length: int | None = option(None, "tokens per target in evaluation and generation")
    block_size: int | None = option(None, "tokens per block of concatenated text (causal LM)")
    pad_to_max_length: bool = option(
        False, "pad every sample to the maximum length instead of the longest of its batch"
    )
    max_train_samples: int | None = option(None, "train on the first N samples only")
    max_eval_samples: int | None = option(None, "evaluate on the first N samples only")
    max_predict_samples: int | None = option(None, "predict the first N samples only")
    streaming: bool = option(False, "read the data while training instead of preparing it; needs --max-steps")
    num_proc: int | None = option(None, "processes that tokenise", aliases=("preprocessing_num_workers",))
    overwrite_cache: bool = option(False, "tokenise again even if a prepared copy exists")
    validation_split_percentage: int = option(
        5,
        "share of the training data held out when a causal LM has no validation data",
        metavar="PERCENT",
        example_scripts=True,
    )
    keep_linebreaks: bool = option(True, "keep line breaks of txt files", example_scripts=True)
    ignore_pad_token_for_loss: bool = option(
        True, "leave padding out of the loss; false is refused", example_scripts=True
    )
    forced_bos_token: str | None = option(
        None, "first token to generate, for multilingual models", metavar="TOKEN", example_scripts=True
    )
    num_beams: int | None = option(None, "beams of generation in evaluation")

    # lora
    lora: int | None = option(
        None, "train LoRA adapters of this rank instead of all weights", group="lora", metavar="RANK"
    )
    lora_alpha: int | None = option(None, "LoRA scale")
    lora_dropout: float = option(0.0, "dropout on the adapters' input", metavar="P")
    lora_targets: list[str] = option([], "modules that get adapters", metavar="NAME")

    # checkpoints, restarts, and what happens when something goes wrong
    save_every: str | None = option(
        None,
        "optimizer steps between checkpoints; auto: from the time a save takes and the rate of failures",
        group="survive",
        metavar="N|auto",
    )
    auto_micro_batch: bool = option(
        False, "begin with the largest micro batch and halve it where memory runs out; also: --micro-batch-size auto"
    )
    keep: int = option(
        3,
        "checkpoints kept, beside the best one; the last that verifies is never deleted",
        aliases=("save_total_limit",),
    )
    async_save: bool = option(False, "write checkpoints while training goes on, where DeepSpeed can")
    trust: bool = option(
        False, "load checkpoints that another user owns or that everybody may write; they can run any code"
    )
    max_restarts: int = option(3, "times the workers are started again after a transient failure")
    hang_timeout: float | None = option(
        None, "seconds without a step after which a rank counts as hung; 0: never", metavar="SECONDS"
    )
    remedy: bool = option(True, "when memory runs out, halve the micro batch, recompute, offload, and go on")
    on_nan: str = option(
        "stop",
        "what a NaN or infinite loss or gradient does: end the run, skip the step, or go back to a checkpoint",
        choices=("stop", "skip", "rollback"),
    )
    warm: bool = option(True, "keep a process with the heavy imports done, so that restarts are fast")
    sample_ledger: bool = option(False, "write the ids of each step's samples to samples-rank-N.jsonl")

    # run
    output: str | None = option(None, "run folder", group="run", aliases=("output_dir",), metavar="DIR")
    resume: str = option(
        "auto",
        "auto: newest complete checkpoint of the run folder; never; or a checkpoint folder",
        aliases=("resume_from_checkpoint",),
        metavar="auto|never|DIR",
    )
    config: str | None = option(None, "run.yaml with defaults for all flags", metavar="FILE")
    explain: bool = option(False, "print every value with its source and stop")
    dry_run: bool = option(False, "print the command and environment and stop")
    nproc: int | None = option(None, "worker processes on this machine", aliases=("nproc_per_node",))
    master_port: int | None = option(None, "rendezvous port", metavar="PORT")
    find_port: bool = option(False, "take the next free port when --master-port is taken (at most 10 tries)")
    early_stopping: int | None = option(None, "stop after N evaluations without a better metric")
    profile: int | None = option(None, "trace N steps with torch.profiler")
    wandb_project: str | None = option(None, "Weights & Biases project; implies --report-to wandb", metavar="NAME")
    tensorboard_dir: str | None = option(None, "folder of TensorBoard's event files", metavar="DIR")
    force: bool = option(False, "do it although dsrun advises against it")
    debug: bool = option(False, "show everything, tracebacks and NCCL logs included")
