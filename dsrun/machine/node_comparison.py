"""In what the nodes of one run differ: of the doctor's test between nodes, and of wheels that are sent to them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from dsrun.findings.finding import Finding, Level, finding_of, text_of
from dsrun.messages import Message, joined
from dsrun.system.hostlist import compressed

_LONGEST = 80

TITLES = {
    "nccl": "NCCL",
    "gpus": "GPUs",
    "python": "Python",
    "deepspeed": "DeepSpeed",
    "wheel": Message("DeepSpeed's wheel"),
    "driver": Message("driver"),
}
"""The facts' names for people, where that is another."""


@dataclass(frozen=True, kw_only=True)
class NodeDifference:
    """A fact that is not the same on all nodes, with its value on each."""

    fact: str
    values: Mapping[str, str]

    @property
    def minority(self) -> list[str]:
        """The nodes without the value that more than half of them have; none where no value is as common."""
        (usual, count), *_ = Counter(self.values.values()).most_common()
        others = [node for node, value in self.values.items() if value != usual]
        return others if count > len(others) else []

    def finding(self, level: Level = "error", where: str = "") -> Finding:
        """What to tell about it: which nodes have which value."""
        having: dict[str, list[str]] = {}
        for node, value in self.values.items():
            having.setdefault(value, []).append(node)
        parts = [text_of("nodes_differ.part", value=value, nodes=_listed(nodes)) for value, nodes in having.items()]
        fix = text_of("nodes_differ.gpus") if self.fact == "gpus" else None
        title = TITLES.get(self.fact, self.fact)
        return finding_of("nodes_differ", level=level, where=where, fix=fix, title=title, parts=joined("; ", parts))


def _listed(nodes: list[str]) -> str:
    """As SLURM writes them; how many there are, where their names have nothing in common."""
    names = compressed(nodes)
    return names if len(names) <= _LONGEST else text_of("nodes_differ.many", count=len(nodes))


def compared(nodes: Mapping[str, Mapping[str, str]]) -> list[NodeDifference]:
    """The facts in which nodes differ; `nodes` has the same facts of each, by its name."""
    names = next(iter(nodes.values()), {})
    facts = {name: {node: own[name] for node, own in nodes.items()} for name in names}
    return [NodeDifference(fact=name, values=values) for name, values in facts.items() if len(set(values.values())) > 1]
