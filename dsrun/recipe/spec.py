"""TrainSpec: everything dsrun itself asks about a training run.

Each option is declared once, here. The command line, the keys of run.yaml, their validation, `--help` and
docs/train.md are derived from these fields; the flags of Seq2SeqTrainingArguments stand beside them as data
in hf_flags.json (see `dsrun.recipe.flags`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dsrun.options import option
from dsrun.recipe.resilience import ResilienceOptions

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
class TrainSpec(ResilienceOptions):
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
        "auto",
        "what the model learns; auto reads it from the model's config",
        group="model",
        choices=("auto", "seq2seq", "causal-lm"),
    )
    from_scratch: bool = option(
        False, "initialise from the model's config instead of loading weights", group="model"
    )
    model_config: list[str] = option(
        [], "overrides of the model's config, with --from-scratch", group="model", metavar="KEY=VALUE"
    )
    weights_dtype: str = option(
        "float32",
        "dtype the weights are loaded in; auto keeps the checkpoint's own",
        group="model",
        aliases=("dtype", "torch_dtype"),
        choices=("float32", "bfloat16", "float16", "auto"),
    )
    attn_implementation: str | None = option(
        None, "attention kernel: sdpa, eager, flash_attention_2 …", group="model", metavar="NAME"
    )
    resize_position_embeddings: bool | None = option(
        None,
        "stretch learned position embeddings to --max-source-length",
        group="model",
        example_scripts=True,
    )
    config_name: str | None = option(
        None, "model config, if not the model's own", group="model", metavar="NAME|DIR", example_scripts=True
    )
    config_overrides: str | None = option(
        None,
        "overrides of the model's config as key=value,key=value",
        group="model",
        metavar="LIST",
        example_scripts=True,
    )
    model_type: str | None = option(
        None,
        "architecture to initialise from scratch when no --model is given",
        group="model",
        metavar="TYPE",
        example_scripts=True,
    )
    tokenizer: str | None = option(
        None,
        "tokenizer, if not the model's own",
        group="model",
        aliases=("tokenizer_name",),
        metavar="NAME|DIR",
    )
    use_fast_tokenizer: bool = option(
        True, "use the Rust tokenizer where there is one", group="model", example_scripts=True
    )
    model_revision: str = option(
        "main", "branch, tag or commit of a Hub model", group="model", metavar="REV", example_scripts=True
    )
    token: str | None = option(
        None,
        "Hub token; better left to `hf auth login` or HF_TOKEN",
        group="model",
        metavar="TOKEN",
        example_scripts=True,
    )
    trust_remote_code: bool = option(
        False, "run Python code that comes with a Hub model or dataset", group="model", example_scripts=True
    )
    cache_dir: str | None = option(
        None, "where models and datasets are cached", group="model", metavar="DIR", example_scripts=True
    )

    # zero
    zero: str | None = option(
        None,
        "ZeRO stage: 1 shards optimizer states, 2 gradients too, 3 parameters too; 0: plain DDP; auto: as planned",
        group="zero",
        choices=("0", "1", "2", "3", "auto"),
    )
    offload: str = option(
        "none",
        "move optimizer states (and ZeRO-3 parameters) to host memory or NVMe",
        group="zero",
        choices=("none", "cpu", "nvme"),
    )
    nvme_path: str | None = option(None, "local NVMe folder for --offload nvme", group="zero", metavar="DIR")

    # batch
    global_batch_size: int | None = option(
        None,
        "samples per optimizer step over all GPUs; accumulation steps follow from it",
        group="batch",
        metavar="N",
    )
    micro_batch_size: int | None = option(
        None,
        "samples per GPU and forward pass; auto: the largest that fits, found by trying",
        group="batch",
        metavar="N|auto",
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
        None,
        "configuration (subset) of the dataset",
        group="data",
        aliases=("dataset_config_name",),
        metavar="NAME",
    )
    train_file: str | None = option(
        None,
        "training file: json, jsonl, csv, parquet, txt, or .bin tokens",
        group="data",
        aliases=("train_data_path",),
        metavar="FILE",
    )
    validation_file: str | None = option(
        None, "validation file", group="data", aliases=("valid_data_path",), metavar="FILE"
    )
    test_file: str | None = option(None, "test file, for --do-predict", group="data", metavar="FILE")
    source_lang: str | None = option(None, "source language key or code", group="data", metavar="LANG")
    target_lang: str | None = option(None, "target language key or code", group="data", metavar="LANG")
    lang: str | None = option(
        None,
        "language code for multilingual summarization models",
        group="data",
        metavar="LANG",
        example_scripts=True,
    )
    source_prefix: str | None = option(
        None, "text put before every source, as T5 expects", group="data", metavar="TEXT"
    )
    text_column: str | None = option(None, "column of the source text", group="data", metavar="NAME")
    summary_column: str | None = option(
        None, "column of the target text", group="data", aliases=("target_column",), metavar="NAME"
    )
    max_length: int | None = option(
        None, "tokens per sequence: the source of seq2seq, the block of causal LM", group="data", metavar="N"
    )
    max_source_length: int | None = option(None, "tokens per source", group="data", metavar="N")
    max_target_length: int | None = option(None, "tokens per target", group="data", metavar="N")
    val_max_target_length: int | None = option(
        None, "tokens per target in evaluation and generation", group="data", metavar="N"
    )
    block_size: int | None = option(
        None, "tokens per block of concatenated text (causal LM)", group="data", metavar="N"
    )
    pad_to_max_length: bool = option(
        False, "pad every sample to the maximum length instead of the longest of its batch", group="data"
    )
    max_train_samples: int | None = option(
        None, "train on the first N samples only", group="data", metavar="N"
    )
    max_eval_samples: int | None = option(
        None, "evaluate on the first N samples only", group="data", metavar="N"
    )
    max_predict_samples: int | None = option(
        None, "predict the first N samples only", group="data", metavar="N"
    )
    streaming: bool = option(
        False, "read the data while training instead of preparing it; needs --max-steps", group="data"
    )
    num_proc: int | None = option(
        None, "processes that tokenise", group="data", aliases=("preprocessing_num_workers",), metavar="N"
    )
    overwrite_cache: bool = option(False, "tokenise again even if a prepared copy exists", group="data")
    validation_split_percentage: int = option(
        5,
        "share of the training data held out when a causal LM has no validation data",
        group="data",
        metavar="PERCENT",
        example_scripts=True,
    )
    keep_linebreaks: bool = option(True, "keep line breaks of txt files", group="data", example_scripts=True)
    ignore_pad_token_for_loss: bool = option(
        True, "leave padding out of the loss; false is refused", group="data", example_scripts=True
    )
    forced_bos_token: str | None = option(
        None,
        "first token to generate, for multilingual models",
        group="data",
        metavar="TOKEN",
        example_scripts=True,
    )
    num_beams: int | None = option(None, "beams of generation in evaluation", group="data", metavar="N")

    # lora
    lora: int | None = option(
        None, "train LoRA adapters of this rank instead of all weights", group="lora", metavar="RANK"
    )
    lora_alpha: int | None = option(None, "LoRA scale", group="lora", metavar="N")
    lora_dropout: float = option(0.0, "dropout on the adapters' input", group="lora", metavar="P")
    lora_targets: list[str] = option([], "modules that get adapters", group="lora", metavar="NAME")

    # run
    output: str | None = option(None, "run folder", group="run", aliases=("output_dir",), metavar="DIR")
    resume: str = option(
        "auto",
        "auto: newest complete checkpoint of the run folder; never; or a checkpoint folder",
        group="run",
        aliases=("resume_from_checkpoint",),
        metavar="auto|never|DIR",
    )
    config: str | None = option(None, "run.yaml with defaults for all flags", group="run", metavar="FILE")
    explain: bool = option(False, "print every value with its source and stop", group="run")
    dry_run: bool = option(False, "print the command and environment and stop", group="run")
    nproc: int | None = option(
        None, "worker processes on this machine", group="run", aliases=("nproc_per_node",), metavar="N"
    )
    master_port: int | None = option(None, "rendezvous port", group="run", metavar="PORT")
    find_port: bool = option(
        False, "take the next free port when --master-port is taken (at most 10 tries)", group="run"
    )
    early_stopping: int | None = option(
        None, "stop after N evaluations without a better metric", group="run", metavar="N"
    )
    profile: int | None = option(None, "trace N steps with torch.profiler", group="run", metavar="N")
    wandb_project: str | None = option(
        None, "Weights & Biases project; implies --report-to wandb", group="run", metavar="NAME"
    )
    tensorboard_dir: str | None = option(
        None, "folder of TensorBoard's event files", group="run", metavar="DIR"
    )
    force: bool = option(False, "do it although dsrun advises against it", group="run")
    debug: bool = option(False, "show everything, tracebacks and NCCL logs included", group="run")
