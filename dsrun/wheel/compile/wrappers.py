"""The scripts in front of a build's compilers: they set the processor, and keep the build's paths out of its output.

The same source gives the same bytes in any folder."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from dsrun.datafiles import toml_beside
from dsrun.wheel.platform.cpu import TABLES, CpuLevel, resolve_level
from dsrun.wheel.platform.cxx import CxxCompiler, asked, c_compiler
from dsrun.wheel.platform.nvcc import Nvcc

_SOURCE_FLAG = "--orig_src_path_name"
_ARCHS = """\
        -gencode|--generate-code|-t|--threads) shift; count=$((count - 1)); continue ;;
        -gencode=*|--generate-code=*|--threads=*) continue ;;
"""
# ccache hands on paths below CCACHE_BASEDIR relative to where the compiler runs, at most this deep in a source tree.
_DEPTH = 4
CpuLinks = Mapping[str, tuple[Sequence[str], Sequence[str]]]


def prefix_maps(folder: Path, trees: Sequence[Path], site_packages: Path) -> list[str]:
    """Flags for gcc and clang that shorten paths in __FILE__ and in debug information.

    Those of the build `folder`, of its source `trees` (whether or not a compiler cache made them relative) and of the
    environment's `site_packages`, where torch's headers are. Of several maps that fit, compilers take the last."""
    relative = ["/".join([".."] * depth) for depth in range(1, _DEPTH + 1)]
    return [f"-ffile-prefix-map={path}=." for path in (*relative, site_packages, folder, *trees)]


def write_nvcc_wrapper(
    script: Path,
    nvcc: Nvcc,
    real: Path,
    *,
    trees: Path,
    cache: Path | None,
    debug: bool = False,
    archs: Sequence[str] | None = None,
    standard: str | None = None,
) -> Path:
    """Write `script`, which calls nvcc `real`, behind ccache if that is the `cache`; returns what to call.

    nvcc names internal symbols after a hash of the source's absolute path, which its front ends take as an option of
    their own. The line tables of GPU code hold whole paths, too: without `debug`, -lineinfo is dropped. `archs`: flags
    in the place of every -gencode, which a setup.py may have chosen by itself, and of --threads, as memory is counted
    for one. `standard`: the C++ standard in the place of an older one. sccache does not support nvcc's flags for
    dependencies (torch.utils.cpp_extension, _write_ninja_file)."""
    command = shlex.join([*([str(cache)] if cache and cache.name == "ccache" else []), str(real)])
    # The oldest do not hand it on.
    answer = asked([str(nvcc.path), "--dryrun", "-x", "cu", "-c", "/dev/null", "-o", "/dev/null"])
    flags = f'-Xcudafe {_SOURCE_FLAG}="$name"' if answer and _SOURCE_FLAG in answer.stderr else ""
    dropped = "" if debug else "        -lineinfo|--generate-line-info) continue ;;\n"
    if archs is not None:
        dropped += _ARCHS
        flags = " ".join([flags, shlex.join(archs)])
    dropped += _standard(standard)
    template: str = toml_beside(__file__)["nvcc"]
    _write(script, template.format(trees=trees, command=command, flags=flags, dropped=dropped))
    return script


def compiler_environment(
    folder: Path,
    cxx: CxxCompiler,
    level: str,
    *,
    debug: bool = True,
    launcher: Sequence[str] = (),
    links: CpuLinks | None = None,
    append: Sequence[str] = (),
    standard: str | None = None,
) -> dict[str, str]:
    """CXX and CC for the build: scripts written into `folder`, in front of `cxx` and its C compiler.

    Both are needed: setuptools compiles with either, depending on its version, and torch hands CC to nvcc as host
    compiler. Each script rewrites -march, -mcpu and DeepSpeed's SIMD define to `level` (CFLAGS cannot: DeepSpeed's
    flags come later), drops -g and its kin unless `debug`, puts the flags of `links` around a link whose output's name
    begins with the key, adds `append` to every call, takes `standard` for an older C++ standard, and runs `launcher`
    (ccache) in front of the real compiler, which so sees the rewritten flags. They keep the compilers' own names, by
    which torch and nvcc know them."""
    known = resolve_level(cxx, level)
    compilers = {"CXX": cxx.path, "CC": c_compiler(cxx) or cxx.path}
    for real in set(compilers.values()):
        rules = _standard(standard)
        text = _script(real, known, rules, debug=debug, launcher=launcher, links=links or {}, append=append)
        _write(folder / real.name, text)
    return {variable: str(folder / real.name) for variable, real in compilers.items()}


def _write(script: Path, text: str) -> None:
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)


def _standard(standard: str | None) -> str:
    """The rule for an older C++ standard, which the headers of torch may not take."""
    return f"        -std=c++11|-std=c++14|-std=c++17) argument=-std={standard} ;;\n" if standard else ""


def _script(
    real: Path,
    level: CpuLevel,
    cases: str,
    *,
    debug: bool,
    launcher: Sequence[str],
    links: CpuLinks,
    append: Sequence[str],
) -> str:
    """The wrapper's text, for a POSIX shell; `cases`: further rules."""
    rules = []
    if level.flag:
        defines = "|".join(f"-D{name}|-D{name}=*" for name in TABLES["defines"])
        rules.append(f"-march=*|-mcpu=*) argument={shlex.quote(level.flag)} ;;")
        rules.append("-mtune=native) continue ;;")
        rules.append(f"{defines}) argument={shlex.quote(level.define)} ;;")
    if not debug:
        rules.append("-g|-g[0-3]|-ggdb*|-gdwarf*|-gline-tables-only|-gsplit-dwarf) continue ;;")
    cases = "".join(f"        {rule}\n" for rule in rules) + cases
    command = shlex.join([*launcher, str(real)])
    template: str = toml_beside(__file__)["cxx"]
    linked = "".join(
        f'        {name}*.so) set --{_spaced(before)} "$@"{_spaced(after)} ;;\n'
        for name, (before, after) in links.items()
    )
    return template.format(cases=cases, links=linked, command=command, append=_spaced(append))


def _spaced(arguments: Sequence[str]) -> str:
    return f" {shlex.join(arguments)}" if arguments else ""
