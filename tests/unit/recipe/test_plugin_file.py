"""The plugin's file is found and read before anything starts; nothing of it runs."""

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.preflight.files import check_files
from dsrun.recipe.preflight.plugin_file import find_plugin
from dsrun.recipe.recipe_spec import TrainSpec


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working folder, with a plugin that may not be run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), "/nowhere"])
    (tmp_path / "mine.py").write_text("import helper\nclass Mine:\n    x = 1\nraise SystemExit('it ran')\n")
    (tmp_path / "helper.py").write_text("A = 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("mine", r"--plugin mine is not module:Class \(--plugin mine:MyPlugin\)"),
        ("src/mine.py:Mine", r"is not module:Class \(--plugin src\.mine:Mine\)"),
        ("mine.py:Mine", r"is not module:Class \(--plugin mine:Mine\)"),
        ("other:Mine", r"there is no module other in .* or in Python's path"),
        ("mine.part:Mine", "there is no module mine.part"),
        ("mine:Mime", r"mine\.py has no Mime \(did you mean Mine\?\)"),
        ("mine:x", r"mine\.py has no x "),
        ("broken:Mine", r"--plugin broken:Mine: broken\.py:2: "),
    ],
)
def test_wrong_plugin_name_is_one_line(here, named, words):
    (here / "broken.py").write_text("class Mine:\n    def\n")
    with pytest.raises(UsageError, match=words) as raised:
        find_plugin(named)
    assert "\n" not in str(raised.value)


def test_plugin_is_found_in_working_folder(here, monkeypatch):
    """Also where Python's path does not have it, as for the command `dsrun`."""
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert find_plugin("mine:Mine").path == here / "mine.py"


@pytest.mark.parametrize(
    "text",
    ["from helper import Mine", "Mine = object", "try:\n    from x import Mine\nexcept ImportError:\n    pass",
     "from helper import *", "def __getattr__(name):\n    pass"],
)  # fmt: skip
def test_plugin_class_may_come_from_elsewhere(here, text):
    (here / "given.py").write_text(text)
    assert find_plugin("given:Mine").module == "given"


def test_digest_covers_own_files_that_a_plugin_imports(here):
    (here / "package/inner").mkdir(parents=True)
    for name, text in {
        "package/__init__.py": "",
        "package/plugin.py": "import json\nfrom . import one\nfrom .inner.two import B\nclass Mine: pass\n",
        "package/one.py": "import helper\n",
        "package/inner/__init__.py": "",
        "package/inner/two.py": "from ..three import C\n",
        "package/three.py": "",
        "unrelated.py": "",
    }.items():
        (here / name).write_text(text)
    found = find_plugin("package.plugin:Mine")
    names = {str(path.relative_to(here)) for path in found.files}
    inside = {f"package/{name}.py" for name in ("plugin", "__init__", "one", "inner/__init__", "inner/two", "three")}
    assert names == {*inside, "helper.py"}
    (here / "package/three.py").write_text("C = 2")
    assert find_plugin("package.plugin:Mine").sha256 != found.sha256


def test_installed_packages_beside_a_plugin_are_not_its_own(here, monkeypatch):
    (here / "site-packages/helper").mkdir(parents=True)
    (here / "site-packages/helper/__init__.py").write_text("")
    (here / "site-packages/single.py").write_text("import helper\nclass Mine: pass\n")
    monkeypatch.setattr("sys.path", [str(here / "site-packages")])
    assert [path.name for path in find_plugin("single:Mine").files] == ["single.py"]


def test_check_files_looks_at_the_plugin():
    check_files(TrainSpec(model="org/model", plugin="mine:Mine"))
    with pytest.raises(UsageError, match="no module"):
        check_files(TrainSpec(model="org/model", plugin="none:Mine"))
