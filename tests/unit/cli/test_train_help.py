"""`dsrun train --help`: every flag, its value and its default."""

import pytest

from dsrun.cli.train import help_text
from dsrun.recipe.flags import CHOSEN, hf_flags, own_flags


@pytest.mark.parametrize("width", [60, 80, 120])
def test_train_help_names_every_flag_within_its_width(width):
    text = help_text(width)
    names = set(text.split())
    for flag in (*own_flags().values(), *hf_flags().values()):
        assert flag.shown in names
    assert max(map(len, text.splitlines())) <= width


def test_defaults_chosen_at_start_are_described():
    assert own_flags()["zero"].default_text.startswith("2, unless")
    assert "[runs/<model>-<time>]" in help_text()
    assert all(own_flags()[name].default_text for name in CHOSEN if name in own_flags())
