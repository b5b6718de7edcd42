"""The ready-made files of ds_configs/, made from the options in shipped.toml.

`python -m dsrun.zero.generate.shipped FOLDER` writes them and their README again.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from dsrun.zero.generate.config import generate, render
from dsrun.zero.generate.spec import ZeroSpec

_FILES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SHIPPED = {name: ZeroSpec(**file["options"]) for name, file in _FILES.items()}
LINES: dict[str, str] = {name: file["does"] for name, file in _FILES.items()}

README = """# Ready-made DeepSpeed configurations

For `deepspeed --deepspeed_config`, `TrainingArguments(deepspeed=...)` or `dsrun train --deepspeed FILE`. Values that
say `"auto"` are filled by the Hugging Face Trainer from its own arguments; `dsrun train --zero N` writes the same
configuration by itself, with bucket sizes that follow the model's width. `dsrun config` makes a file like these for
any other wish, and `dsrun config --explain` says what each key does. Those with bf16 in them want the Trainer's
`--bf16`.

| file | what it does |
| --- | --- |
{rows}

Made by `python -m dsrun.zero.generate.shipped ds_configs`; a test holds files and generator equal.
"""


def readme() -> str:
    """The README.md of ds_configs/."""
    return README.format(rows="\n".join(f"| `{name}` | {LINES[name]} |" for name in SHIPPED))


def listing() -> str:
    """One line for each shipped file, as `dsrun config --list` prints them."""
    width = max(map(len, SHIPPED))
    return "\n".join(f"{name.ljust(width)}  {LINES[name].replace('`', '')}" for name in SHIPPED)


def write_all(folder: Path) -> None:
    """Write every shipped configuration and the README into `folder`."""
    for name, spec in SHIPPED.items():
        (folder / name).write_text(render(generate(spec)))
    (folder / "README.md").write_text(readme())


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
