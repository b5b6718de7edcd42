"""What pages name exists: files, modules, flags of each command, the wheel's file name; how a page begins."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from dsrun import __version__
from dsrun.cli.main import cli
from dsrun.recipe.compat.removed import other_tools, removed_flags
from dsrun.recipe.flags import by_spelling, normalise

ROOT = Path(__file__).parents[3]
DOCS = [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/zh/*.md"))]
PAGES = [*(ROOT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md", "SECURITY.md")), *DOCS]
PAGES += [ROOT / "slurm/README.md", ROOT / "build/README.md"]
FILE = re.compile(r"(?<![\w./*{-])(?:[\w-]+/)*[\w-]+\.(?:py|toml|j2|bash)\b")
# A reader's own, and those of other projects.
FOREIGN_FILES = {
    *("my_train.py", "mine.py", "my_plugin.py", "x.py", "zero_to_fp32.py"),
    *("run_translation.py", "run_summarization.py", "run_clm.py"),
    *("labels.toml", "setup.py"),
}
FOREIGN_FOLDERS = ("deepspeed/", "transformers/", "torchao/", "runtime/", "integrations/")
# Of sbatch and srun; of mpirun, jsrun and flux; of docker, kubectl and node_exporter; of pip, uv and cuobjdump; of
# programs of this checkout; of torchx.
FOREIGN_FLAGS = {
    *("batch", "chdir", "cpus_per_gpu", "export", "gpus_per_task", "kill_on_bad_exit", "mem_per_cpu", "mem_per_gpu"),
    *(
        "nnodes",
        "rdzv_backend",
        "rdzv_endpoint",
        "no_kill",
        "ntasks_per_node",
        "open_mode",
        "segment",
        "signal",
        "switches",
        "wait",
        "prefix",
    ),
    *(
        "bind",
        "bind_to",
        "map_by",
        "cpu_per_rs",
        "gpu_per_rs",
        "rs_per_host",
        "tasks_per_rs",
        "tasks_per_node",
        "expand",
    ),
    *("build_arg", "ipc", "rm", "shm_size", "tag", "volume", "from_literal", "data", "collector"),
    *("index_url", "no_build_isolation", "no_deps", "no_binary", "wheel_dir", "list_gpu_code"),
    *("background", "cold", "dry", "rows", "runs", "steps", "waits", "write", "check", "accuracy"),
    *("dryrun", "flag"),
}
# docs/train.md shows how a mistyped flag is answered.
MISTYPED = {"learning_rat"}


def written(page: Path) -> str:
    """The text of a page without its generated part."""
    return re.sub(r"<!-- generated.*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@cache
def file_names() -> frozenset[str]:
    folders = [each for each in ROOT.iterdir() if each.is_dir() and each.name not in {".venv", ".git", "runs", "dist"}]
    return frozenset(
        path.name for folder in [ROOT, *folders] for path in folder.glob("*.*" if folder == ROOT else "**/*.*")
    )


@cache
def commands() -> dict[tuple[str, ...], click.Command]:
    """Every command by its words: ("config", "check")."""
    found: dict[tuple[str, ...], click.Command] = {}

    def add(command: click.Command, words: tuple[str, ...], context: click.Context) -> None:
        found[words] = command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                add(inner, (*words, name), click.Context(inner, parent=context))

    add(cli, (), click.Context(cli))
    return found


def options_of(words: tuple[str, ...]) -> set[str]:
    command = commands()[words]
    options = [each for each in command.get_params(click.Context(command)) if isinstance(each, click.Option)]
    found = {normalise(name) for each in options for name in [*each.opts, *each.secondary_opts]}
    return found | {"help"} | (training_flags() if words in {("train",), ("prepare",), ("data",)} else set())


def training_flags() -> set[str]:
    return {*by_spelling(), *removed_flags(), *(f"no_{name}" for name in by_spelling())}


def snippets(page: Path) -> Iterator[str]:
    """Each `dsrun …` of a page: in code quotes, and lines of blocks, continuation lines joined."""
    text = written(page)
    for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield from re.findall(r"(?:^|[\s(])dsrun ([a-z].*)", line.partition("  #")[0])[:1]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`dsrun ([a-z][^`\n]*)`", prose)


def named_flags(snippet: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The flags of a command line, each with the command that has to know it; what follows `--` is another command."""
    words = [word.rstrip("),.;:") for word in snippet.split()]
    for end in ("|", ">", "&&", ";"):
        words = words[: words.index(end)] if end in words else words
    own, _, rest = " ".join(words).partition(" -- ")
    words = own.split()
    name: tuple[str, ...] = ()
    while words and (*name, words[0]) in commands():
        name = (*name, words.pop(0))
    if name:
        yield from ((name, word.partition("=")[0]) for word in words if re.match(r"--[a-z]", word))
    if re.match(r"(?:dsrun )?train ", rest):
        yield from named_flags(rest.removeprefix("dsrun "))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_exist(page):
    named = {each.rpartition("/")[2] for each in FILE.findall(written(page)) if not each.startswith(FOREIGN_FOLDERS)}
    assert named - file_names() - FOREIGN_FILES == set()


@pytest.mark.parametrize("folder", ["dsrun", "build", "slurm"])
def test_files_that_comments_of_tables_name_exist(folder):
    wrong = {
        (table.name, name)
        for table in (ROOT / folder).rglob("*.toml")
        for line in re.findall(r"^\s*#.*", table.read_text(encoding="utf-8"), re.MULTILINE)
        for name in FILE.findall(line)
        if not name.startswith(FOREIGN_FOLDERS) and name.rpartition("/")[2] not in file_names()
    }
    assert wrong == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_pages_name_exist(page):
    """Modules, and what a module defines; `dsrun.log` begins as a module would, and is a name of something else."""
    packages = {path.stem for path in (ROOT / "dsrun").iterdir()}
    for name in re.findall(r"`(dsrun(?:\.[a-z_]+)+)`", written(page)):
        place = ROOT / name.replace(".", "/")
        if name.split(".")[1] in packages and not (place.is_dir() or place.with_suffix(".py").exists()):
            text = place.parent.with_suffix(".py").read_text(encoding="utf-8")
            assert re.search(rf"^(?:def |class )?{place.name}\b", text, re.MULTILINE), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_that_pages_name_exist(page):
    """Of some command, or of another program."""
    known = {name for words in commands() for name in options_of(words)} | training_flags()
    named = {normalise(flag) for flag in re.findall(r"(?<![\w-])--[a-zA-Z][\w-]+", written(page))}
    others = FOREIGN_FLAGS | MISTYPED | other_tools().keys()
    assert {name for name in named - others if not {name, name.removeprefix("no_")} & known} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_pages_have_the_flags_beside_them(page):
    """`dsrun render-slurm --hostfile` is wrong, though `dsrun launch` has that flag."""
    named = {(" ".join(words), flag) for snippet in snippets(page) for words, flag in named_flags(snippet)}
    wrong = {each for each in named if normalise(each[1]) not in options_of(tuple(each[0].split())) | MISTYPED}
    assert wrong == set()


def test_flags_are_held_against_their_own_command():
    assert list(named_flags("config check ds.json --gpu x | less --x")) == [(("config", "check"), "--gpu")]
    assert [flag for _, flag in named_flags("launch --nproc 2 -- dsrun train --zero=2")] == ["--nproc", "--zero"]
    assert "hostfile" in options_of(("launch",)) - options_of(("render-slurm",))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_to_copy_are_whole(page):
    """No ellipsis in a line with a prompt, but in its comment."""
    blocks = re.findall(r"^```console\n(.*?)^```$", written(page), re.MULTILINE | re.DOTALL)
    lines = [
        line for block in blocks for line in block.replace("\\\n", " ").splitlines() if re.match(r"[\w-]*\$ ", line)
    ]
    assert [line for line in lines if "…" in " ".join(shlex.split(line, comments=True))] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_begins_with_what_it_is_for(page):
    """A title, then a sentence: no heading, block or table before it."""
    title, first = written(page).split("\n\n")[:2]
    assert re.fullmatch(r"# [^\n]+", title)
    assert re.match(r"[\w`*\[]", first)
    assert not first.startswith("```")


def test_file_name_of_the_wheel_has_this_version():
    named = {each for page in PAGES for each in re.findall(r"dsrun-([\d.]+)-py3-none-any\.whl", written(page))}
    assert named == {__version__}
