"""The pictures of pages: small files that load nothing, and how terminals are drawn."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tools.pictures.terminal import terminal_svg

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs/images"
LARGEST = 64 * 1024


def test_picture_has_colours_and_words_of_the_terminal():
    drawn = terminal_svg("\x1b[32mready\x1b[0m <b>\n\n  end\n", title="dsrun x", columns=40, name="one")
    words = "".join(ElementTree.fromstring(drawn).itertext()).replace("\xa0", " ")
    assert "ready" in words
    assert "<b>" in words
    assert "dsrun x" in words
    assert re.search(r"\.one-r\d+ \{ fill: #3fb950", drawn)
    assert "clip-path" not in drawn


def test_line_longer_than_the_picture_is_wrapped():
    height = [
        float(terminal_svg(text, title="", columns=20, name="one").split('viewBox="0 0 ')[1].split()[1].rstrip('"'))
        for text in ("x" * 20, "x" * 21)
    ]
    assert height[0] < height[1]


def test_pictures_of_pages_are_there_and_used():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    used = {
        Path(name).name for page in pages for name in re.findall(r"images/([\w.-]+)", page.read_text(encoding="utf-8"))
    }
    assert used == {path.name for path in IMAGES.iterdir()}


@pytest.mark.parametrize("path", sorted(IMAGES.iterdir()), ids=lambda path: path.name)
def test_picture_is_small_and_loads_nothing(path):
    assert path.stat().st_size <= LARGEST
    if path.suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        ElementTree.fromstring(text)
        assert not re.search(r"@font-face|url\((?!#)|href=", text)
