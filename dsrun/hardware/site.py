"""Other names of GPUs than the table's: a site's own words (`gpu:big:4` says nothing to anybody else), and machines by
their name: those that clouds rent out, by the instance type, and NVIDIA's own (build/instances.toml)."""

import os
import re
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

    Raises UsageError for a file that is not TOML or has another form."""
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


# What Azure, AWS's SageMaker and people put before it, and the title of Azure's pages after it.
_AROUND = re.compile(r"^(?:standard-|ml\.|nvidia-)|-series$")


@dataclass(frozen=True)
class CloudInstance:
    """A machine: `count` GPUs called `gpu` in the table."""

    gpu: str
    count: int


@cache
def instances() -> dict[str, CloudInstance]:
    """The machines of build/instances.toml, by `_plain` names."""
    makers = read_toml(data_folder("build") / "instances.toml")
    return {
        _plain(name): CloudInstance(gpu, count)
        for kinds in makers.values()
        for gpu, counts in kinds.items()
        for name, count in counts.items()
    }


def instance(name: str) -> CloudInstance | None:
    """The machine called `name`, with blanks, hyphens or underscores, with or without "Standard_" and "ml."; None for
    other names."""
    return instances().get(_plain(name))


def _plain(name: str) -> str:
    return _AROUND.sub("", re.sub(r"[\s_-]+", "-", name.strip().lower()))
