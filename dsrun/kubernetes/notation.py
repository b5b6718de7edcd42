"""Values as Kubernetes reads them: names, quantities, labels, tolerations, mounts, and text in which it expands $(VAR).

The forms are those of k8s.io/apimachinery: pkg/util/validation/validation.go, and pkg/api/resource/quantity.go.
"""

import posixpath
import re
from decimal import Decimal
from typing import NamedTuple

# Of a DNS label (RFC 1035), and of the value of a label in Kubernetes.
LONGEST_LABEL = 63
# RFC 1035, as names of Services and JobSets are: pods find each other by such names.
NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_QUANTITY = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)(?P<suffix>[KMGTPE]i|[mkMGTPE]|[eE]\d{1,2})?", re.ASCII)
_UNITS = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "m": -3}
_TOLERATION = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^:]*))?(:(?P<effect>[^:]+))?")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def is_subdomain(text: str) -> bool:
    """Whether `text` can name an object: a claim, a secret, a class."""
    # Kubernetes, Object Names and IDs, DNS Subdomain Names (RFC 1123).
    return len(text) <= 253 and bool(_SUBDOMAIN.fullmatch(text))


def is_namespace(text: str) -> bool:
    """Whether `text` can name a namespace, which may begin with a digit."""
    return len(text) <= LONGEST_LABEL and "." not in text and is_subdomain(text)


def is_key(text: str) -> bool:
    """Whether `text` can be the key of a label, an annotation or a resource: NAME or example.org/NAME."""
    domain, slash, name = text.rpartition("/")
    return (not slash or is_subdomain(domain)) and len(name) <= LONGEST_LABEL and bool(_WORD.fullmatch(name))


def is_label_value(text: str) -> bool:
    """Whether `text` can be the value of a label; it may be empty."""
    return not text or (len(text) <= LONGEST_LABEL and bool(_WORD.fullmatch(text)))


def quantity(text: str) -> Decimal | None:
    """The number that a quantity stands for (8, 500m, 200Gi, 1e3); None for what is none."""
    found = _QUANTITY.fullmatch(text)
    if not found:
        return None
    number, suffix = Decimal(found["number"]), found["suffix"] or ""
    if suffix.endswith("i"):
        return number * Decimal(1024) ** ("KMGTPE".index(suffix[0]) + 1)
    power = int(suffix[1:]) if suffix[:1] in ("e", "E") and len(suffix) > 1 else _UNITS[suffix]
    return number.scaleb(power)


def slug(text: str, longest: int) -> str:
    """`text` as a name: t5-large for google/T5_Large."""
    name = re.sub(r"[^a-z0-9]+", "-", text.rpartition("/")[2].lower()).strip("-")
    name = name if NAME.match(name) else f"run-{name}"
    return name[:longest].strip("-")


def literal(text: str) -> str:
    """`text` for `command`, `args` or `env`, where Kubernetes expands $(VAR) and makes $ of $$.

    (third_party/forked/golang/expansion/expand.go of kubernetes/kubernetes.)
    """
    return text.replace("$", "$$")


class Toleration(NamedTuple):
    key: str
    value: str | None
    effect: str | None


def toleration(text: str) -> Toleration | None:
    """A toleration; None for what is none."""
    found = _TOLERATION.fullmatch(text)
    if not found or not is_key(found["key"]) or not is_label_value(found["value"] or ""):
        return None
    if found["effect"] not in (None, *EFFECTS):
        return None
    return Toleration(key=found["key"], value=found["value"], effect=found["effect"])


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
