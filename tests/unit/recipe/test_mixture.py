"""Mixtures as users write them: in a file, in run.yaml and as JSON; what is wrong with them, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.flags import own_flags
from dsrun.recipe.mixture import set_keys, specs_of
from dsrun.recipe.preflight.files import check_files, check_inputs
from dsrun.recipe.resolve import explain, resolve
from dsrun.recipe.resolved import differences, from_json, frozen_argv, to_json

MIX = """\
temperature: 2
sets:
  wiki: {train_file: [a.jsonl, b.jsonl]}
  en-no:
    dataset_name: wmt16
    source_lang: en
    target_lang: no
    source_prefix: "translate: "
    apply-chat-template: yes
    max_train_samples: 10
"""
SETS = {
    "wiki": {"train_file": ["a.jsonl", "b.jsonl"]},
    "en-no": {
        "dataset": "wmt16",
        "source_lang": "en",
        "target_lang": "no",
        "source_prefix": "translate: ",
        "apply_chat_template": True,
        "max_train_samples": 10,
    },
}


@pytest.fixture
def mixed(tmp_path):
    """mixed(text, *argv): the recipe with that mixture."""

    def read(text, *argv):
        (tmp_path / "mix.yaml").write_text(text, encoding="utf-8")
        return resolve(["--model", "m", "--mix", "mix.yaml", *argv], tmp_path)

    return read


@pytest.fixture
def complaint(mixed):
    def complaint(text, *argv):
        with pytest.raises(UsageError) as caught:
            mixed(text, *argv)
        return str(caught.value)

    return complaint


def test_mixture_from_file_run_file_and_json_alike(mixed, tmp_path):
    """A file of its own, the section data of run.yaml, JSON on the command line: one mixture."""
    recipe = mixed(MIX)
    assert recipe.spec.mix == {"temperature": 2.0, "sets": SETS}
    section = "".join(f"  {line}\n" for line in MIX.splitlines())
    (tmp_path / "run.yaml").write_text(f"train: {{model: m}}\ndata:\n{section}")
    other = resolve(["--config", "run.yaml"], tmp_path)
    assert other.spec.mix == recipe.spec.mix
    assert other.sources["mix"] == "run.yaml:2"
    assert resolve(["--model", "m", "--mix", json.dumps(recipe.spec.mix)], tmp_path).spec.mix == recipe.spec.mix


def test_mixture_of_the_documentation_is_one(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    (tmp_path / "run.yaml").write_text(page.partition("## Mixtures")[2].partition("```yaml\n")[2].partition("```")[0])
    specs = specs_of(resolve(["--model", "m", "--config", "run.yaml"], tmp_path).spec)
    assert [(each.train_file, each.dataset) for each in specs.values()] == [
        (["wiki/*.jsonl"], None),
        (["chats.jsonl"], None),
        ([], "wmt16"),
    ]


def test_mixture_of_the_command_line_replaces_that_of_the_run_file(mixed, tmp_path):
    (tmp_path / "run.yaml").write_text("data: {sets: {x: {train_file: x.jsonl}}}")
    assert set(mixed(MIX, "--config", "run.yaml").spec.mix["sets"]) == {"wiki", "en-no"}


def test_sets_inherit_what_is_given_for_the_run(mixed):
    specs = specs_of(mixed(MIX, "--source-prefix", "say: ", "--max-eval-samples", "5").spec)
    assert [each.source_prefix for each in specs.values()] == ["say: ", "translate: "]
    assert [each.max_eval_samples for each in specs.values()] == [5, 5]
    assert all(each.mix is None for each in specs.values())
    assert specs["wiki"].train_file == ["a.jsonl", "b.jsonl"]
    assert specs["wiki"].dataset is None


def test_keys_of_a_set_are_options_of_data():
    options = {flag.name for flag in set_keys().values()} - {"weight"}
    assert {own_flags()[name].group for name in options} == {"Data"}
    # What all samples of a batch share, and what is done once, is the same for all sets.
    assert not options & {"mix", "max_length", "block_size", "streaming", "num_proc", "num_beams", "chat_template"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sets: {a: {trainfile: x}}", "mix.yaml:1: unknown key trainfile of set a (did you mean train_file?)"),
        (
            "sets:\n  a:\n    learning_rate: 1",
            "mix.yaml:3: unknown key learning_rate of set a (it is the same for all sets: under train:, or on the "
            "command line)",
        ),
        ("set: {a: {train_file: x}}", "mix.yaml:1: unknown key set of a mixture (did you mean sets?)"),
        (
            "train_file: x",
            "mix.yaml:1: unknown key train_file of a mixture (train_file belongs under the name of a set, below sets:)",
        ),
        ("", "mix.yaml: a mixture needs sets (write sets: {NAME: {train_file: FILE}, …})"),
        ("sets: {}", "mix.yaml: a mixture needs sets (write sets: {NAME: {train_file: FILE}, …})"),
        ("sets:\n  a:", "mix.yaml:2: set a does not hold `key: value` lines (write KEY: VALUE, one a line, below it)"),
        ("sets:\n  a: {weight: 1}", "mix.yaml:2: set a names no data (give it train_file, validation_file or dataset)"),
        (
            "sets:\n  a b: {train_file: x}",
            "mix.yaml:2: 'a b' is not a valid name of a set (use letters, digits, _, - and .)",
        ),
        ("sets:\n  a: {train_file: x}\n  a: {train_file: y}", "mix.yaml:3: a is given twice, first in line 2"),
        ("sets:\n  a: {dataset: x, dataset_name: y}", "mix.yaml:2: set a has dataset twice (give it once)"),
        ("sets:\n  a: {train_file: x, weight: 0}", "mix.yaml:2: a.weight: 0 is not above 0"),
        ("sets:\n  a: {train_file: x, weight: .inf}", "mix.yaml:2: a.weight: '.inf' is not a number"),
        ("sets:\n  a: {train_file: x, weight: heavy}", "mix.yaml:2: a.weight: 'heavy' is not a number"),
        ("temperature: -1\nsets:\n  a: {train_file: x}", "mix.yaml:1: temperature: -1 is not above 0"),
        ("sets:\n  a: {train_file: x, max_train_samples: 0}", "mix.yaml:2: a.max_train_samples: 0 is not at least 1"),
        (
            "sets:\n  a: {train_file: x, weight: 1}\n  b: {train_file: y}",
            "mix.yaml:3: set b has no weight, but set a has one (weigh all sets or none)",
        ),
        (
            "temperature: 2\nsets:\n  a: {train_file: x, weight: 1}",
            "mix.yaml:3: set a has a weight beside a temperature (keep one: each says how sets are mixed)",
        ),
        (
            "sets:\n  a: {validation_file: x, weight: 1}",
            "mix.yaml:2: set a has a weight and no training data (leave the weight out)",
        ),
        ("sets: [", "mix.yaml:1:8: not YAML: expected the node content, but found '<stream end>'"),
    ],
)
def test_mistakes_in_a_mixture_named_with_their_line(complaint, text, expected):
    assert complaint(text) == expected


def test_missing_mixture_file_named(tmp_path):
    with pytest.raises(UsageError, match=r"^nowhere\.yaml: cannot be read: No such file or directory"):
        resolve(["--model", "m", "--mix", "nowhere.yaml"], tmp_path)


@pytest.mark.parametrize("flag", ["--dataset", "--train-file", "--validation-file", "--test-file"])
def test_mixture_and_other_data_exclude_each_other(complaint, flag):
    assert complaint(MIX, flag, "x.jsonl").startswith(f"{flag} and --mix both name the data (")


@pytest.mark.parametrize("section", ["data: {sets: {x: {train_file: x.jsonl}}}", "train: {train_file: x.jsonl}"])
def test_data_on_the_command_line_replaces_that_of_the_run_file(tmp_path, section):
    """A mixture gives way to files named on the command line, and the other way round, with a notice."""
    (tmp_path / "run.yaml").write_text(section)
    (tmp_path / "mix.yaml").write_text(MIX)
    mixes = section.startswith("train")
    flags = ["--mix", "mix.yaml"] if mixes else ["--train-file", "y.jsonl"]
    recipe = resolve(["--model", "m", "--config", "run.yaml", *flags], tmp_path)
    assert (recipe.spec.mix is None, recipe.spec.train_file) == (not mixes, [] if mixes else ["y.jsonl"])
    assert len(recipe.notices) == 1
    assert "gives way to" in recipe.notices[0]


def test_mixture_cannot_be_streamed(complaint):
    assert complaint(MIX, "--streaming", "--max-steps", "5").startswith("--streaming with --mix: ")


def test_mixture_survives_recipe_json_and_a_jobs_flags(mixed, tmp_path):
    """recipe.json and the flags that a rendered job trains by hold the mixture itself, not the name of its file."""
    recipe = mixed(MIX.replace("translate: ", "翻译 😀: "))
    assert from_json(json.loads(json.dumps(to_json(recipe))), "recipe.json").spec == recipe.spec
    words = frozen_argv(recipe)
    (tmp_path / "mix.yaml").unlink()
    assert resolve(words, tmp_path).spec == recipe.spec
    assert {name: value for name, value, _ in explain(recipe)}["mix"] == recipe.spec.mix


def test_changed_weight_named_among_changed_settings(mixed):
    before, now = (mixed(f"sets: {{a: {{train_file: x, weight: {weight}}}}}") for weight in (1, 2))
    assert differences(before, now) == ["--mix sets.a.weight: 1.0 -> 2.0 (command line)"]
    assert differences(before, before) == []


def test_files_of_every_set_checked(mixed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "x"}')
    (tmp_path / "b.jsonl").write_text("words")
    check_files(mixed("sets: {a: {train_file: '*a.jsonl'}}").spec)
    with pytest.raises(UsageError, match=r"^set b: b\.jsonl, line 1: not JSON"):
        check_inputs(mixed("sets: {a: {train_file: a.jsonl}, b: {train_file: b.jsonl}}"))
    with pytest.raises(UsageError, match=r"^set b: --validation-file c\.jsonl does not exist$"):
        check_files(mixed("sets: {b: {train_file: a.jsonl, validation_file: c.jsonl}}").spec)
    with pytest.raises(UsageError, match=r"^set b: --dataset \./nowhere does not exist"):
        check_files(mixed("sets: {b: {dataset: ./nowhere}}").spec)
