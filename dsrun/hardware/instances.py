"""The machines that clouds rent out, by the name of the instance type: build/instances.toml."""

from dataclasses import dataclass
from functools import cache

from dsrun.datafiles import data_folder, read_toml


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
