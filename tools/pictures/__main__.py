"""`python -m tools.pictures [DIR]`: draw the pictures anew, in minutes; the trainings stay in DIR, if it is named."""

import sys
import tempfile
from pathlib import Path

from tools.pictures.job import CHECKOUT, COLUMNS, TutorialJob
from tools.pictures.terminal import terminal_svg

IMAGES = CHECKOUT / "docs" / "images"


def draw(folder: Path) -> None:
    job = TutorialJob(folder)
    job.prepare()
    screens = {
        "watching": ("dsrun monitor runs/numbers", job.watched()),
        "training": ("dsrun train --config run.yaml", job.resumed()),
        "diagnosis": ("dsrun diagnose runs/too-fast", job.diagnosed()),
    }
    for name, (title, printed) in screens.items():
        drawn = terminal_svg(printed, title=title, columns=COLUMNS, name=name)
        (IMAGES / f"{name}.svg").write_text(drawn, encoding="utf-8")
    (IMAGES / "loss.png").write_bytes(job.loss_png())


if len(sys.argv) > 1:
    place = Path(sys.argv[1]).absolute()
    place.mkdir(parents=True)
    draw(place)
else:
    with tempfile.TemporaryDirectory() as temporary:
        draw(Path(temporary))
