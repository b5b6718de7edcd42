"""Your own code in a run of `dsrun train`: a class that `--plugin module:Class` names. Importing this loads no torch.

Every method is optional. docs/plugins.md has examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import TrainerCallback

API_VERSION: Final = 1
MeanOver = Literal["tokens", "samples"]


@dataclass(frozen=True)
class Example:
    """A row of the evaluation data and what the model wrote to it."""

    source: str
    prediction: str
    reference: str


class Plugin:
    """The base of plugins. Each rank makes one object of the class, without arguments, before it loads anything."""

    api_version: ClassVar[int]
    """The version of this protocol that a plugin is written for; each must state it."""
    version: ClassVar[str] = ""
    """Change it where `rows` gives other rows for a reason that is not in the plugin's source: prepared data is kept
    and taken again as long as this and the source are the same."""
    mean_over: ClassVar[MeanOver] = "tokens"
    """What the sum that `loss` returns is divided by: the target tokens of the global batch, or its samples."""
    metric_names: ClassVar[tuple[str, ...]] = ()
    """The names of what `metrics` returns, for --metric-for-best-model."""

    def rows(self, row: dict[str, Any], split: str) -> dict[str, Any] | list[dict[str, Any]] | None:
        """What to train on in place of a row of the data: one row, several, or none. `row` has the columns of the file
        or dataset, and what is returned those of any layout that dsrun knows, the same for all rows; `split` is train,
        validation or test. The result must depend on the arguments alone."""
        return row

    def collate(self, batch: "dict[str, Tensor]", rows: Sequence[dict[str, Any]]) -> "dict[str, Tensor]":
        """The batch as the model is to get it, also with further inputs. `batch` has input_ids and attention_mask
        [rows, length], labels [rows, length of the targets], -100 where nothing is learned, and decoder_input_ids for
        seq2seq; `rows` are its rows before padding. Rows whose labels are all -100 fill up a short batch."""
        return batch

    def loss(self, model: Any, inputs: "dict[str, Tensor]", targets: "Tensor") -> "Tensor":
        """The loss of a micro batch, summed over its target tokens (or samples, see `mean_over`): a scalar. dsrun
        divides it by their number in the global batch, so the loss does not depend on micro batches and ranks.

        `model(**inputs)["logits"]` [rows, length, vocabulary] are the logits; `targets` [rows, length] the tokens that
        they are to predict at the same positions, -100 where none is. Must also work for a batch without any target."""
        raise NotImplementedError

    def metrics(self, examples: Sequence[Example]) -> dict[str, float]:
        """Metrics of the texts that the model wrote in an evaluation, by `metric_names`. Called on rank 0."""
        return {}

    def callbacks(self) -> "list[TrainerCallback]":
        """Callbacks of the Trainer, on every rank."""
        return []
