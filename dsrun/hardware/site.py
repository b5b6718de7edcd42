"""Other names of GPUs than the table's: a site's own words (`gpu:big:4` says nothing to anybody else), and the machines
that clouds rent out, by the name of the instance type (build/instances.toml)."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dsrun.datafiles import data_folder, read_toml
from dsrun.errors import UsageError

FILE = "gpus.toml"
_EXAMPLE = 'the form is: [gpus], then a line for each word: big = "H100 SXM5 80GB"'


def site_files(environ: Mapping[str, str] = os.environ) -> tuple[Path, Path]:
    """The administrator's file and the user's, whose words come first."""
    own = Path(environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    return Path("/etc/dsrun", FILE), own / "dsrun" / FILE


def read_words(files: Iterable[Path]) -> dict[str, str]:
    """The words in `files` in lower case, and the GPU that each stands for; later files come first.

    Raises UsageError for a file that is not TOML or has another form.
    """
    words: dict[str, str] = {}
    for file in files:
        try:
            content = file.read_bytes()
        except OSError:
            continue
        import tomllib  # few sites have such a file

        try:
            table = tomllib.loads(content.decode("utf-8"))["gpus"]
            if not all(isinstance(name, str) and name.strip() for name in table.values()):
                raise TypeError
            words |= {word.lower(): name for word, name in table.items()}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            reason = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it has another form"
            raise UsageError(f"{file}: {reason}", fix=_EXAMPLE) from None
    return words


@cache
def site_words() -> Mapping[str, str]:
    """The words of this machine's files."""
    return read_words(site_files())


@dataclass(frozen=True)
class CloudInstance:
    """What a cloud calls a machine: `count` GPUs called `gpu` in the table."""

    gpu: str
    count: int


@cache
def instances() -> dict[str, CloudInstance]:
    """The instance types of build/instances.toml by their name in lower case, without Azure's "standard_"."""
    clouds = read_toml(data_folder("build") / "instances.toml")
    return {
        name.lower().removeprefix("standard_"): CloudInstance(gpu, count)
        for kinds in clouds.values()
        for gpu, counts in kinds.items()
        for name, count in counts.items()
    }


def instance(name: str) -> CloudInstance | None:
    """The machine that a cloud calls `name`, also without Azure's "Standard_"; None for other names."""
    return instances().get(name.strip().lower().removeprefix("standard_"))
