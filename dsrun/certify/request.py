"""What `dsrun certify` is asked for, as its program gets it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

CertifyTask = Literal["causal", "seq2seq", "dpo"]


@dataclass(frozen=True, kw_only=True)
class CertifyRequest:
    """`model` is a folder, a config.json, or a Hub name whose files are on this machine. `stages` are the ZeRO stages;
    the least of them is what the others are compared with. `task` is None for what the config says. `gpus` is how many
    are used, 0 for CPUs. With `quick`, what needs the most runs is left out. `only` are the codes of the checks to
    make, none for all. `limit_s` is for one check or run."""

    model: str
    task: CertifyTask | None = None
    stages: Sequence[int] = (0, 2, 3)
    lora: bool = True
    quick: bool = False
    gpus: int = 0
    only: Sequence[str] = ()
    limit_s: float = 60.0
    trust_remote_code: bool = False

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "CertifyRequest":
        return cls(**json.loads(text))
