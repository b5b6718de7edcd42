"""Writing a generated part into a page of docs/."""

from __future__ import annotations

import pytest

from dsrun.docpage import END, GeneratedPart, table
from dsrun.errors import UsageError

PART = GeneratedPart("some.module", lambda: "| new |\n")
BEGIN = "<!-- generated: python -m some.module -->"


def test_docpage_replaced_between_markers_only(tmp_path, capsys):
    """A page is brought up to date between its markers alone."""
    page = tmp_path / "page.md"
    page.write_text(f"Before ă.\n{BEGIN}\nold\n{END}\nAfter.\n", encoding="utf-8")
    PART.main([str(page)])
    assert page.read_text(encoding="utf-8") == f"Before ă.\n{BEGIN}\n\n| new |\n\n{END}\nAfter.\n"
    assert list(tmp_path.iterdir()) == [page]
    assert capsys.readouterr().out == ""


def test_docpage_printed_without_page_argument(capsys):
    PART.main([])
    assert capsys.readouterr().out == "| new |\n"


@pytest.mark.parametrize("page", ["words", f"{BEGIN} words", f"{END} words {BEGIN}"])
def test_docpage_without_markers_rejected(page, tmp_path):
    """A page without its markers is refused and stays as it is."""
    file = tmp_path / "page.md"
    file.write_text(page, encoding="utf-8")
    with pytest.raises(UsageError, match=r"no generated part: .*some\.module"):
        PART.main([str(file)])
    assert file.read_text(encoding="utf-8") == page
    assert list(tmp_path.iterdir()) == [file]


def test_docpage_table_escapes_pipe():
    """A bar within a cell does not end the cell."""
    assert table(("flag", "value"), [("`--a`", "`x|y`")]) == ("| flag | value |\n| --- | --- |\n| `--a` | `x\\|y` |")
