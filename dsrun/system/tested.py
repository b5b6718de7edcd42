"""The versions of torch and transformers that dsrun's tests run with: those of constraints.txt, as a test ensures."""

from collections.abc import Mapping

from dsrun.messages import Message

TESTED: Mapping[str, str] = {"torch": "2.13.0", "transformers": "5.23.0"}


def untested(versions: Mapping[str, str]) -> Message | None:
    """What to tell of installed versions that are not tested; None where they are, up to the number of the patch, or
    where there are none."""
    other = [name for name, tested in TESTED.items() if name in versions and _minor(versions[name]) != _minor(tested)]
    if not other:
        return None
    return Message(
        "{installed}: not tested with dsrun, as {tested} are",
        installed=", ".join(f"{name} {versions[name]}" for name in other),
        tested=", ".join(f"{name} {version}" for name, version in TESTED.items()),
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
