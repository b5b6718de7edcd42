"""Making a demo folder: atomically, once, and again when its content would differ."""

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsrun.demo import build_demo as build
from dsrun.demo.build_demo import DEMO_NAMES, MARK, data_only, materialise
from dsrun.demo.models import DEFAULTS
from dsrun.errors import MissingError, UsageError


def _contents(folder):
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _rows(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def small(monkeypatch):
    """Small demos, so that a test may build several."""
    phrases = build.number_phrases(train=20, validation=5, test=5)
    monkeypatch.setattr(build, "number_phrases", lambda: phrases)
    return phrases


def test_t5_folder(t5):
    assert (t5.task, t5.source_lang, t5.target_lang) == ("seq2seq", "en", "ro")
    assert {file.name for file in t5.model.iterdir()} == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert len(_rows(t5.train_file)) == 20_100
    assert len(_rows(t5.validation_file)) == 512
    assert set(_rows(t5.test_file)[0]["translation"]) == {"en", "ro"}


def test_llama_folder(llama):
    assert (llama.task, llama.source_lang) == ("causal-lm", None)
    for file in (llama.train_file, llama.validation_file, llama.test_file):
        rows = _rows(file)
        assert rows
        assert all(set(row) == {"text"} for row in rows)


def test_every_demo_has_defaults():
    assert set(DEFAULTS) == set(DEMO_NAMES)
    for settings in DEFAULTS.values():
        assert settings["global_batch_size"] > 0
        assert settings["learning_rate"] > 0


@pytest.mark.parametrize("name", ["demo-t5", pytest.param("demo-llama", marks=pytest.mark.exhaustive)])
def test_demo_build_is_deterministic(name, request, tmp_path):
    """Two builds of a demo give the same bytes."""
    first = request.getfixturevalue("t5" if name == "demo-t5" else "llama").model.parent
    again = materialise(name, tmp_path / "again").model.parent
    assert _contents(first) == _contents(again)


def test_demo_build_leaves_only_folder_and_lock(small, tmp_path):
    materialise("demo-t5", tmp_path / "demo")
    assert {file.name for file in tmp_path.iterdir()} <= {"demo", ".demo.lock"}


def test_finished_demo_folder_reused(small, tmp_path, monkeypatch):
    paths = materialise("demo-t5", tmp_path / "demo")
    paths.train_file.write_text("mine\n")
    monkeypatch.setattr(build, "_fill", _must_not_run)
    assert materialise("demo-t5", tmp_path / "demo") == paths
    assert paths.train_file.read_text() == "mine\n"


def test_demo_rebuilt_by_other_version(small, tmp_path, monkeypatch):
    paths = materialise("demo-t5", tmp_path / "demo")
    fresh = _contents(tmp_path / "demo")
    paths.train_file.write_text("old\n")
    (paths.model / "left-over").write_text("old\n")
    monkeypatch.setattr(build, "__version__", "999.0")
    materialise("demo-t5", tmp_path / "demo")
    now = _contents(tmp_path / "demo")
    assert now.pop(MARK) != fresh.pop(MARK)
    assert now == fresh


def test_demo_rebuilt_for_other_demo_in_same_folder(small, tmp_path):
    materialise("demo-t5", tmp_path / "demo")
    data_only("seq2seq", tmp_path / "demo")
    assert not (tmp_path / "demo" / "model").exists()


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_failed_demo_build_leaves_nothing(small, tmp_path, monkeypatch, failure):
    def fail(*_):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(build.tokenizers, "model_files", fail)
        with pytest.raises(failure):
            materialise("demo-t5", tmp_path / "demo")
    assert {file.name for file in tmp_path.iterdir()} <= {".demo.lock"}
    assert materialise("demo-t5", tmp_path / "demo").model.is_dir()


def test_failed_demo_rebuild_keeps_old_folder(small, tmp_path, monkeypatch):
    materialise("demo-t5", tmp_path / "demo")
    before = _contents(tmp_path / "demo")
    monkeypatch.setattr(build, "__version__", "999.0")
    monkeypatch.setattr(build, "_fill", _must_not_run)
    with pytest.raises(AssertionError):
        materialise("demo-t5", tmp_path / "demo")
    assert _contents(tmp_path / "demo") == before


def test_killed_demo_build_not_taken_as_finished(tmp_path):
    script = (
        "import os, sys, pathlib\n"
        "from dsrun.demo import build_demo as build\n"
        "build.tokenizers.model_files = lambda *_: os._exit(9)\n"
        "build.materialise('demo-t5', pathlib.Path(sys.argv[1]))\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "demo")], check=False)
    assert killed.returncode == 9
    assert not (tmp_path / "demo").exists()
    assert [file for file in tmp_path.iterdir() if file.name.startswith(".demo.tmp-")]
    paths = materialise("demo-t5", tmp_path / "demo")
    assert (paths.model / "config.json").is_file()
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".demo.tmp-")]


@pytest.mark.parametrize("mark", [None, "", "[]", "not json", '{"name": "demo-t5"}'])
def test_foreign_folder_rejected_by_demo_build(small, tmp_path, mark):
    """A folder without a mark of dsrun is left alone."""
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "train.jsonl").write_text("someone's own\n")
    if mark is not None:
        (folder / MARK).write_text(mark)
    before = _contents(folder)
    with pytest.raises(UsageError, match="not a demo"):
        materialise("demo-t5", folder)
    assert _contents(folder) == before


@pytest.mark.parametrize("damage", ["remove", "empty"])
def test_damaged_demo_folder_rebuilt(small, tmp_path, damage):
    paths = materialise("demo-t5", tmp_path / "demo")
    before = _contents(tmp_path / "demo")
    if damage == "remove":
        paths.test_file.unlink()
    else:
        paths.test_file.write_text("")
    materialise("demo-t5", tmp_path / "demo")
    assert _contents(tmp_path / "demo") == before


def test_demo_rebuilt_for_older_mark_format(small, tmp_path):
    """A mark of an older format makes the demo be built again."""
    paths = materialise("demo-t5", tmp_path / "demo")
    before = _contents(tmp_path / "demo")
    mark = json.loads((tmp_path / "demo" / MARK).read_text())
    del mark["files"]
    (tmp_path / "demo" / MARK).write_text(json.dumps(mark))
    paths.test_file.unlink()
    materialise("demo-t5", tmp_path / "demo")
    assert _contents(tmp_path / "demo") == before


def test_demo_build_into_empty_folder(small, tmp_path):
    (tmp_path / "demo").mkdir()
    assert materialise("demo-t5", tmp_path / "demo").train_file.is_file()


def test_file_in_place_of_demo_folder_rejected(tmp_path):
    (tmp_path / "demo").write_text("mine\n")
    with pytest.raises(UsageError, match="not a demo"):
        materialise("demo-t5", tmp_path / "demo")
    assert (tmp_path / "demo").read_text() == "mine\n"


def test_concurrent_demo_builds_run_once(small, tmp_path, monkeypatch):
    """Of many builds at once, one does the work."""
    calls = []
    fill = build._fill
    monkeypatch.setattr(build, "_fill", lambda *args: (calls.append(args), fill(*args)))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: materialise("demo-t5", tmp_path / "demo"), range(4)))
    assert len(calls) == 1
    assert len(set(found)) == 1


@pytest.mark.parametrize("task", ["seq2seq", pytest.param("causal-lm", marks=pytest.mark.exhaustive)])
def test_data_only_equals_demo_data(task, request, tmp_path):
    demo = request.getfixturevalue("t5" if task == "seq2seq" else "llama")
    paths = data_only(task, tmp_path / "data only")
    assert paths.model is None
    assert paths.task == task
    assert (paths.source_lang, paths.target_lang) == (demo.source_lang, demo.target_lang)
    for split in ("train_file", "validation_file", "test_file"):
        assert getattr(paths, split).read_bytes() == getattr(demo, split).read_bytes()
    assert not (tmp_path / "data only" / "model").exists()


@pytest.mark.parametrize(
    ("make", "name"), [(materialise, "demo-gpt"), (materialise, "seq2seq"), (data_only, "demo-t5")]
)
def test_unknown_demo_name_rejected(make, name, tmp_path):
    with pytest.raises(UsageError, match="there is no demo") as caught:
        make(name, tmp_path / "demo")
    assert "one of" in caught.value.fix
    assert not list(tmp_path.iterdir())


def test_llama_demo_without_tokenizers_names_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    few = build.CorpusSplits(train=[{"text": "a"}], validation=[{"text": "b"}], test=[{"text": "c"}])
    monkeypatch.setattr(build, "python_docs", lambda: few)
    with pytest.raises(MissingError) as caught:
        materialise("demo-llama", tmp_path / "demo")
    assert "pip install" in caught.value.fix
    assert not (tmp_path / "demo").exists()


def test_t5_demo_imports_no_heavy_package(tmp_path):
    script = (
        "import sys, pathlib\n"
        "from dsrun.demo.build_demo import materialise\n"
        "materialise('demo-t5', pathlib.Path(sys.argv[1]))\n"
        "print([m for m in ('torch', 'transformers', 'tokenizers', 'datasets') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "demo")], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


def _must_not_run(*_):
    raise AssertionError("built although it should not")
