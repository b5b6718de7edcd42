"""Keeps the paths of a build out of what its compilers write: the same source gives the same bytes in any folder."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from dsrun.errors import MissingError, ToolError
from dsrun.system.process.proc import capture
from dsrun.wheel.platform.cpu import wrapper
from dsrun.wheel.platform.nvcc import Nvcc

_TIMEOUT_S = 60.0
_SOURCE_FLAG = "--orig_src_path_name"
# ccache hands on paths below CCACHE_BASEDIR relative to where the compiler runs, at most this deep in a source tree.
_DEPTH = 4


def prefix_maps(folder: Path, trees: Sequence[Path], site_packages: Path) -> list[str]:
    """Flags for gcc and clang that shorten paths in __FILE__ and in debug information.

    Those of the build `folder`, of its source `trees` (whether or not a compiler cache made them relative) and of the
    environment's `site_packages`, where torch's headers are. Of several maps that fit, compilers take the last.
    """
    relative = ["/".join([".."] * depth) for depth in range(1, _DEPTH + 1)]
    return [f"-ffile-prefix-map={path}=." for path in (*relative, site_packages, folder, *trees)]


def write_nvcc_wrapper(
    script: Path, nvcc: Nvcc, real: Path, *, trees: Path, cache: Path | None, debug: bool = False
) -> Path:
    """Write `script`, which calls nvcc `real`, behind ccache if that is the `cache`; returns what to call.

    nvcc names internal symbols after a hash of the source's absolute path, which its front ends take as an option of
    their own. The line tables of GPU code hold whole paths, too: without `debug`, -lineinfo is dropped. sccache does
    not support nvcc's flags for dependencies (torch.utils.cpp_extension, _write_ninja_file).
    """
    command = shlex.join([*([str(cache)] if cache and cache.name == "ccache" else []), str(real)])
    flags = f'-Xcudafe {_SOURCE_FLAG}="$name"' if _names_sources(nvcc) else ""
    script.parent.mkdir(parents=True, exist_ok=True)
    dropped = "" if debug else "        -lineinfo|--generate-line-info) continue ;;\n"
    script.write_text(
        wrapper("nvcc").format(trees=trees, command=command, flags=flags, dropped=dropped), encoding="utf-8"
    )
    script.chmod(0o755)
    return script


def _names_sources(nvcc: Nvcc) -> bool:
    """Whether this nvcc hands the source's path to its front ends, which the oldest do not."""
    argv = [str(nvcc.path), "--dryrun", "-x", "cu", "-c", "/dev/null", "-o", "/dev/null"]
    try:
        return _SOURCE_FLAG in capture(argv, seconds=_TIMEOUT_S).stderr
    except (MissingError, ToolError, OSError):
        return False
