"""What a program prints on a terminal, as a small SVG that loads nothing."""

import io
import re

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

# Background and text, the eight colours, and the bright ones; each is told apart from the background by people who see
# little contrast (WCAG AA).
THEME = TerminalTheme(
    (22, 27, 34),
    (230, 237, 243),
    [
        (72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34),
        (121, 192, 255), (210, 168, 255), (86, 212, 221), (230, 237, 243),
    ],
    [
        (139, 148, 158), (255, 161, 152), (86, 211, 100), (227, 179, 65),
        (121, 192, 255), (210, 168, 255), (86, 212, 221), (255, 255, 255),
    ],
)  # fmt: skip
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif }}
{styles}
</style>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def terminal_svg(printed: str, *, title: str, columns: int, name: str) -> str:
    """`printed`, with escape sequences for colours, in a window; `name` makes the classes of the file its own."""
    console = Console(
        file=io.StringIO(), record=True, width=columns, force_terminal=True, color_system="truecolor", highlight=False
    )
    for line in printed.rstrip("\n").splitlines():
        console.print(Text.from_ansi(line), overflow="fold")
    drawn = console.export_svg(title=title, theme=THEME, code_format=FORMAT, unique_id=name)
    # A clip path for each line is half of the file, and nothing is longer than its line.
    drawn = re.sub(r' clip-path="url\(#[^"]*\)"', "", drawn)
    return re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE).strip() + "\n"
