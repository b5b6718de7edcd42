import os
import shutil
import subprocess
import sys
from pathlib import Path

from dsrun.system.host import own_programs_first

OWN = str(Path(sys.executable).parent)


def test_search_path_begins_with_python_folder():
    """This Python's own folder comes first, and the rest stays."""
    assert own_programs_first({"PATH": "/usr/bin:/bin"}) == {"PATH": f"{OWN}:/usr/bin:/bin"}
    assert own_programs_first({}) == {"PATH": f"{OWN}:{os.defpath}"}


def test_search_path_with_python_folder_unchanged():
    """A path that has it already is left as the user ordered it."""
    assert own_programs_first({"PATH": f"/usr/bin:{OWN}"}) == {}


def test_search_path_finds_program_beside_python(tmp_path):
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "ninja").write_text("#!/bin/sh\n")
    (tmp_path / "ninja").chmod(0o755)
    code = "import os, shutil\nfrom dsrun.system.host import own_programs_first\n"
    code += "os.environ.update(own_programs_first(os.environ))\nprint(shutil.which('ninja'))"
    environ = {"PATH": "/nowhere", "PYTHONPATH": str(Path(__file__).parents[3])}
    assert shutil.which("ninja", path="/nowhere") is None
    found = subprocess.run(
        [str(tmp_path / "python"), "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(tmp_path / "ninja")
