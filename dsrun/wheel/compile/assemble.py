"""One wheel from the parts that several builds made, with the same bytes for the same contents."""

import ast
import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.tags import platform_tags
from packaging.version import Version

from dsrun.errors import ToolError
from dsrun.wheel.compile.build_environment import WheelRequest
from dsrun.wheel.platform.ops import DEEPSPEED, DeepspeedOp
from dsrun.wheel.verify.archive import PROVENANCE, record_hash
from dsrun.wheel.verify.contents import WheelLibrary, WheelReport, symbol_versions

INSTALLED = "deepspeed/git_version_info_installed.py"
_OPS_LINE = re.compile(r"^installed_ops=(\{.*\})$", re.MULTILINE)
_VERSION_LINE = re.compile(r"^version='.*'$", re.MULTILINE)
_TORCH_LINE = re.compile(r"^Requires-Dist: torch(?![\w.-])[^;\n]*", re.MULTILINE)
_TAG_LINE = re.compile(r"^Tag: (\w+-\w+)-(\w+)$", re.MULTILINE)
_FIRST_MOMENT = (1980, 1, 1, 0, 0, 0)  # a zip archive's earliest time
_REGULAR = 0o100000
# zlib's default, written out as it decides the bytes.
_LEVEL = 6

ArchiveContents = dict[str, tuple[bytes, int]]
"""Data and permissions of every file of a wheel by its name."""


def assemble(parts: Sequence[Path], into: Path, request: WheelRequest) -> Path:
    """Merge `parts`, wheels of one package with different operations compiled, into the wheel of `request` in `into`.

    Every file comes from the first part that has it; DeepSpeed's table of installed operations is the union. The
    wheel requires the minor version of torch that it was compiled against, its platform tag says which glibc it needs,
    and `.dist-info/dsrun.json` records what it was built from. Files are sorted, dated 1980 and have plain permissions,
    so equal contents give equal bytes. Raises ToolError when the parts differ in anything but their libraries."""
    contents: ArchiveContents = {}
    tables: list[str] = []
    for part in parts:
        with zipfile.ZipFile(part) as archive:
            for info in archive.infolist():
                name = info.filename
                if info.is_dir() or name.endswith(".dist-info/RECORD"):
                    continue
                data = archive.read(info)
                if name == INSTALLED:
                    tables.append(data.decode())
                known = contents.setdefault(name, (data, info.external_attr >> 16))
                if known[0] != data and name != INSTALLED:
                    raise ToolError(f"two builds of one source differ in {name}")
    if request.package == DEEPSPEED:
        contents[INSTALLED] = (_merge_tables(tables).encode(), contents[INSTALLED][1])
    return _write(into, *_finished(contents, request))


def _merge_tables(texts: Sequence[str]) -> str:
    """DeepSpeed's table with every operation that any of the builds compiled."""
    merged: dict[str, bool] = {}
    for text in texts:
        found = _OPS_LINE.search(text)
        if not found:
            raise ToolError(f"{INSTALLED} has no line installed_ops=… (this DeepSpeed is not known to dsrun)")
        for name, built in ast.literal_eval(found[1]).items():
            merged[name] = merged.get(name, False) or bool(built)
    return _OPS_LINE.sub(lambda _: f"installed_ops={merged}", texts[0])


def _finished(contents: ArchiveContents, request: WheelRequest) -> tuple[str, ArchiveContents]:
    """The wheel's file name, and its files with the version, requirements, tag and provenance of `request`."""
    before = next(name.removesuffix(".dist-info/WHEEL") for name in contents if name.endswith(".dist-info/WHEEL"))
    version = request.full_version
    after = f"{before.partition('-')[0]}-{version}"
    named = {
        after + name.removeprefix(before) if name.startswith(f"{before}.") else name: file
        for name, file in contents.items()
    }
    tag = _TAG_LINE.search(named[f"{after}.dist-info/WHEEL"][0].decode())
    if not tag:
        raise ToolError(f"{before}.dist-info/WHEEL has no tag of one interpreter and one platform")
    platform = platform_tag({name: data for name, (data, _) in named.items() if name.endswith(".so")}, tag[2])
    torch = ".".join(request.torch.split(".")[:2])
    wheel, metadata = f"{after}.dist-info/WHEEL", f"{after}.dist-info/METADATA"
    required = f"Requires-Dist: torch=={torch}.*"
    added = "" if _TORCH_LINE.search(named[metadata][0].decode()) else f"\n{required}"
    changes = [
        (wheel, _TAG_LINE, f"Tag: {tag[1]}-{platform}"),
        (metadata, _TORCH_LINE, required),
        (metadata, re.compile(r"^Version: .*$", re.MULTILINE), f"Version: {version}{added}"),
    ]
    if request.package == DEEPSPEED:
        changes.append((INSTALLED, _VERSION_LINE, f"version={version!r}"))
    for name, line, text in changes:
        data, mode = named[name]
        named[name] = (line.sub(text, data.decode()).encode(), mode)
    named[f"{after}.dist-info/{PROVENANCE}"] = (provenance(request).encode(), 0o644)
    return f"{after}-{tag[1]}-{platform}.whl", named


def provenance(request: WheelRequest) -> str:
    """What the wheel was built from, as JSON: the request and its key. It follows from the request alone."""
    return json.dumps({"version": 1, "key": request.key, "inputs": request.as_dict()}, indent=2) + "\n"


def platform_tag(libraries: Mapping[str, bytes], built: str) -> str:
    """The platform tag for `libraries` that were built on the platform `built` ("linux_x86_64").

    By auditwheel's policies it is the oldest manylinux whose glibc and libstdc++ have every symbol version that the
    libraries ask for; torch's libraries and the system's do not count. `built` stays where no policy fits, or where
    this machine would refuse the tag: a compiler may bring a newer libstdc++ than the system's."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    system, _, machine = built.partition("_")
    if system != "linux" or machine not in [each.value for each in Architecture]:
        return built
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
    needed = {name: set(symbol_versions(io.BytesIO(data))) for name, data in libraries.items()}
    tag: str = policies.versioned_symbols_policy(needed).name
    return tag if tag in platform_tags() else built


def _write(into: Path, filename: str, contents: ArchiveContents) -> Path:
    record = next(f"{name.partition('/')[0]}/RECORD" for name in contents if name.endswith(".dist-info/WHEEL"))
    lines = [f"{name},{record_hash([data])},{len(data)}\n" for name, (data, _) in sorted(contents.items())]
    contents = {**dict(sorted(contents.items())), record: ("".join([*lines, f"{record},,\n"]).encode(), 0o644)}
    with zipfile.ZipFile(into / filename, "w") as archive:
        for name, (data, mode) in contents.items():
            info = zipfile.ZipInfo(name, _FIRST_MOMENT)
            info.external_attr = (_REGULAR | (0o755 if mode & 0o111 else 0o644)) << 16
            info.create_system = 3  # Unix, whatever built it
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, _LEVEL)
    return into / filename


def wrong_with_wheel(report: WheelReport, request: WheelRequest, ops: Sequence[DeepspeedOp]) -> list[str]:
    """What the wheel lacks of what `request` asked for, one line each; empty when it is right."""
    torch = ".".join(request.torch.split(".")[:2])
    cuda = ".".join(request.cuda.split(".")[:2]) or None
    pairs = (
        ("its accelerator", report.accelerator, request.accelerator),
        ("its torch", report.torch, torch),
        ("its CUDA", report.cuda, cuda),
        ("its version", report.version, request.full_version),
        ("its Python", report.python, request.python),
    )
    wrong = [f"{what} is {found or 'none'}, not {wanted or 'none'}" for what, found, wanted in pairs if found != wanted]
    for op in ops:
        library = next((each for each in report.libraries if each.path.startswith(f"{op.library}.")), None)
        if library is None:
            wrong.append(f"{op.name} is not in it")
            continue
        if op.name not in report.installed_ops:
            wrong.append(f"{op.name} is compiled, but DeepSpeed's table of installed operations does not name it")
        if request.accelerator == "cuda" and op.code == "cuda":
            wrong += _code(library, op, request)
    return wrong


def expected_code(archs: str, lowest: str | None) -> tuple[set[str], set[str]]:
    """Capabilities for which an operation must hold SASS, and PTX, when TORCH_CUDA_ARCH_LIST is `archs`.

    `lowest`: the operation's own builder leaves out everything below."""
    entries = [entry.partition("+") for entry in archs.split(";") if entry]
    kept = [(cc, suffix) for cc, _, suffix in entries if lowest is None or Version(cc) >= Version(lowest)]
    return {cc for cc, _ in kept}, {cc for cc, suffix in kept if suffix == "PTX"}


def arch_flags(archs: str, lowest: str | None) -> list[str]:
    """nvcc's flags for code as `expected_code` wants it."""
    sass, ptx = expected_code(archs, lowest)
    targets = [*((cc, "sm") for cc in sorted(sass, key=Version)), *((cc, "compute") for cc in sorted(ptx, key=Version))]
    numbers = ((cc.replace(".", ""), kind) for cc, kind in targets)
    return [f"-gencode=arch=compute_{number},code={kind}_{number}" for number, kind in numbers]


def _code(library: WheelLibrary, op: DeepspeedOp, request: WheelRequest) -> list[str]:
    sass, ptx = expected_code(request.archs, op.lowest)
    if not library.sass and not library.ptx:
        return [f"{op.name} contains no GPU code: DeepSpeed built its CPU variant"]
    wrong = []
    for kind, wanted, found in (("SASS", sass, library.sass), ("PTX", ptx, library.ptx)):
        lost = sorted(wanted - set(found), key=Version)
        if lost:
            wrong.append(f"{op.name} has no {kind} for {', '.join(lost)}, only for {', '.join(found) or 'none'}")
    return wrong
