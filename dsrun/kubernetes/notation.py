"""Values as Kubernetes reads them: names, quantities, labels, tolerations, mounts, and text in which it expands $(VAR).

The forms are those of k8s.io/apimachinery: pkg/util/validation/validation.go, and pkg/api/resource/quantity.go."""

import posixpath
import re
from decimal import Decimal
from typing import NamedTuple

from dsrun.datafiles import patterns_beside, toml_beside

_PATTERNS = patterns_beside(__file__)
# Of a DNS label (RFC 1035), and of the value of a label in Kubernetes.
LONGEST_LABEL = 63
NAME = _PATTERNS["name"]
# Whether a text can name a job, an object (a claim, a secret, a class) or a namespace, and be a label's key or value.
is_name, is_subdomain, is_namespace = NAME.fullmatch, _PATTERNS["subdomain"].fullmatch, _PATTERNS["namespace"].fullmatch
is_key, is_label_value = _PATTERNS["key"].fullmatch, _PATTERNS["label_value"].fullmatch


def quantity(text: str) -> Decimal | None:
    """The number that a quantity stands for (8, 500m, 200Gi, 1e3); None for what is none."""
    found = _PATTERNS["quantity"].fullmatch(text)
    unit = toml_beside(__file__)["units"].get(found["unit"]) if found else None
    return Decimal(found["number"]) * Decimal(unit or 1) if found else None


def slug(text: str, longest: int) -> str:
    """`text` as a name: t5-large for google/T5_Large."""
    name = re.sub(r"[^a-z0-9]+", "-", text.rpartition("/")[2].lower()).strip("-")
    name = name if NAME.match(name) else f"run-{name}"
    return name[:longest].strip("-")


def toleration(text: str) -> dict[str, str] | None:
    """A toleration as a pod has it; None for what is none."""
    found = _PATTERNS["toleration"].fullmatch(text)
    if not found or not is_key(found["key"]) or not is_label_value(found["value"] or ""):
        return None
    given = {key: value for key, value in found.groupdict().items() if value is not None}
    return {"key": given.pop("key"), "operator": "Equal" if "value" in given else "Exists", **given}


class ClaimMount(NamedTuple):
    """A claim and the absolute path where it is mounted."""

    claim: str
    path: str
    read_only: bool = False


def mount(text: str, default_path: str | None = None) -> ClaimMount | None:
    """CLAIM:/PATH[:ro], or CLAIM alone where there is a default path; None for what is none."""
    claim, colon, path = text.partition(":")
    path, _, mode = path.partition(":") if colon else (default_path or "", "", "")
    if not is_subdomain(claim) or not path.startswith("/") or ".." in path.split("/") or mode not in ("", "ro"):
        return None
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return None if clean == "/" else ClaimMount(claim=claim, path=clean, read_only=mode == "ro")
