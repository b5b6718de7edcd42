"""Whether a model in a local folder can read the conversations of a data file."""

from pathlib import Path

from dsrun.errors import UsageError
from dsrun.recipe.preflight.data_files import data_format, expanded, first_row
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.files import read_object

# Columns that may hold messages.
_CHATS = ("messages", "conversations", "prompt", "completion", "chosen", "rejected")
# Columns that an encoder-decoder model can learn from, whatever stands beside them.
_PAIRED = {"translation", "source", "target", "input_ids", "text", "summary", "prompt", "input", "output"}


def check_conversations(path: Path, spec: TrainSpec) -> None:
    """Raise UsageError where the model in this folder cannot read the conversations of a data file."""
    config = read_object(path / "config.json")
    splits = (spec.train_file, spec.validation_file, spec.test_file)
    for file in dict.fromkeys(file for names in splits for file in expanded("a data file", names)):
        row = first_row(file) if data_format(file) == "json" else {}
        if spec.text_column or not any(isinstance(row.get(name), list) for name in _CHATS):
            continue
        if config.get("is_encoder_decoder") and not _PAIRED & set(row):
            raise UsageError(
                f"{file} contains conversations, which a model of type {config.get('model_type')} cannot learn",
                fix="choose a causal LM, or data with a source and a target column",
            )
        tokenizer = Path(spec.tokenizer).expanduser() if spec.tokenizer else path
        if not config.get("is_encoder_decoder") and not spec.chat_template and lacks_template(tokenizer):
            raise UsageError(
                f"{file} contains conversations, but the tokenizer in {tokenizer} has no chat template",
                fix="--chat-template FILE, --chat-template chatml, or the --tokenizer of an instruction-tuned model",
            )


def lacks_template(folder: Path) -> bool:
    """Whether a tokenizer is in this folder, without a chat template in any of the places where transformers looks."""
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return False
    files = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
    return not read_object(config).get("chat_template") and not any((folder / name).exists() for name in files)
