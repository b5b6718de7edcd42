"""Models and datasets of ModelScope: downloaded once, what is needed of them, and errors as one line."""

from __future__ import annotations

import json
import threading

import pytest

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.hub.modelscope import fetch
from dsrun.hub.modelscope_cache import ModelscopeAsset, cache_of, complete, folder_of, local_name
from dsrun.recipe.recipe_spec import TrainSpec
from tests.modelscope_server import modelscope_server

MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "README.md": b"---\nlicense: mit\n---\n",
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": b"A" * 5000,
    "model-00002-of-00002.safetensors": b"B" * 5000,
    "consolidated.safetensors": b"C" * 10000,
    "pytorch_model.bin": b"D" * 10000,
    "onnx/model.onnx": b"E" * 100,
    ".gitattributes": b"",
}
SETTINGS = {"config.json", "README.md", "tokenizer.json"}
SHARDS = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
DATA = {
    "README.md": b"",
    "en/train.jsonl": b'{"text": "a"}\n',
    "de/train.jsonl": b'{"text": "b"}\n',
    "photo.png": b"P" * 100,
}


@pytest.fixture
def server(monkeypatch, tmp_path):
    for name in ("MODELSCOPE_DOMAIN", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with modelscope_server() as found:
        found.repositories["models/org/tiny"] = {"master": dict(MODEL)}
        found.repositories["datasets/org/data"] = {"master": dict(DATA)}
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", found.endpoint)
        monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr("modelscope_hub.config._default_config", None)
        yield found


def spec_of(**given):
    return TrainSpec(hub="modelscope", **{"model": "org/tiny", **given})


def fetched(**given):
    """The notices of a download."""
    notices = []
    fetch(spec_of(**given), notify=notices.append)
    return notices


def folder(environ, **given):
    spec = spec_of(**given)
    return local_name(spec.model, "model", spec, environ)


def test_only_files_that_are_read_are_downloaded(server, tmp_path):
    """Of several formats of the weights one, and neither pictures nor hidden files."""
    assert fetched() == ["downloading model org/tiny from ModelScope: 5 files, 0.0 MiB"]
    assert server.sent() == SETTINGS | SHARDS
    place = folder({"MODELSCOPE_CACHE": str(tmp_path / "cache")})
    assert place == str(tmp_path / "cache/models/org--tiny/snapshots/master")
    assert complete(ModelscopeAsset(kind="model", name="org/tiny"), tmp_path / "cache") is not None


def test_second_start_makes_no_request(server):
    fetched()
    server.requests.clear()
    assert fetched() == fetched(from_scratch=True) == []
    assert server.requests == []


def test_model_from_scratch_needs_no_weights(server):
    fetched(from_scratch=True)
    assert server.sent() == SETTINGS
    fetched()
    assert server.sent() == SETTINGS | SHARDS


def test_bin_weights_where_there_are_no_safetensors(server):
    files = server.repositories["models/org/tiny"]["master"]
    for name in SHARDS:
        del files[name]
    fetched()
    assert server.sent() == SETTINGS | {"pytorch_model.bin"}


def test_dataset_configuration_is_its_folder(server):
    fetched(model=None, dataset="org/data", dataset_config="de")
    assert server.sent() == {"de/train.jsonl"}
    fetched(model=None, dataset="org/data")
    assert server.sent() == {"de/train.jsonl", "en/train.jsonl"}
    with pytest.raises(
        UsageError, match=r"--dataset-config dee: .*org/data has no folder of that name \(did you mean de"
    ):
        fetched(model=None, dataset="org/data", dataset_config="dee")


def test_sets_of_a_mixture_are_downloaded(server):
    mix = {"sets": {"a": {"dataset": "org/data", "dataset_config": "en"}, "b": {"train_file": ["x.jsonl"]}}}
    fetched(model=None, mix=mix)
    assert server.sent() == {"en/train.jsonl"}


def test_revision_and_its_absence(server):
    server.repositories["models/org/tiny"]["v2"] = {**MODEL, "config.json": b'{"model_type": "t5"}'}
    fetched(model_revision="v2")
    assert all("Revision=v2" in path for path in server.requests)
    with pytest.raises(UsageError, match=r"not on ModelScope at revision v3 .*check the revision"):
        fetched(model_revision="v3")


def test_missing_file_is_downloaded_again(server, tmp_path):
    fetched()
    server.downloads.clear()
    (tmp_path / "cache/models/org--tiny/snapshots/master/tokenizer.json").unlink()
    fetched()
    assert server.sent() == {"tokenizer.json"}


def test_interrupted_download_goes_on_where_it_stopped(server, monkeypatch, tmp_path):
    """The folder is there, and half a file: not complete, and the other half is asked for."""
    place = tmp_path / "cache/models/org--tiny/snapshots/master"
    place.mkdir(parents=True)
    for name in SETTINGS:
        (place / name).write_bytes(MODEL[name])
    (place / "model-00001-of-00002.safetensors.incomplete").write_bytes(b"A" * 2000)
    fetched()
    assert sorted(server.downloads) == [
        ("model-00001-of-00002.safetensors", 2000), ("model-00002-of-00002.safetensors", 0),
    ]  # fmt: skip
    assert (place / "model-00001-of-00002.safetensors").read_bytes() == b"A" * 5000


def test_cut_connection_is_resumed(server, tmp_path):
    server.cut.add("model-00002-of-00002.safetensors")
    fetched()
    assert ("model-00002-of-00002.safetensors", 2500) in server.downloads


def test_one_of_several_processes_downloads(server):
    notices = []
    threads = [threading.Thread(target=fetch, args=(spec_of(),), kwargs={"notify": notices.append}) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(name for name, _ in server.downloads) == sorted(SETTINGS | SHARDS)
    assert sum("downloading" in each for each in notices) >= 1


def test_private_model_needs_the_token(server, monkeypatch):
    """By the package's own variable or --token; the Hub's token is not sent to ModelScope."""
    server.private.add("models/org/tiny")
    monkeypatch.setenv("HF_TOKEN", server.token)
    with pytest.raises(MissingError, match=r"refuses access \(403\) \(.*modelscope login.*MODELSCOPE_API_TOKEN"):
        fetched()
    fetched(token=server.token)
    assert server.sent() == SETTINGS | SHARDS


@pytest.mark.parametrize(("status", "words"), [(401, "refuses access"), (404, "AI-ModelScope"), (410, "answered 410")])
def test_refused_request_is_one_line(server, status, words):
    server.status = status
    with pytest.raises((MissingError, UsageError), match=words) as caught:
        fetched()
    assert f"MODELSCOPE_ENDPOINT={server.endpoint}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_name_is_a_usage_error(server):
    with pytest.raises(UsageError, match=r"model org/tinny is not on ModelScope .*check the name"):
        fetched(model="org/tinny")


def test_content_that_is_not_what_is_listed(server, tmp_path):
    """Another checksum: the file does not stay, and the download is not complete."""
    server.repositories["models/org/tiny"]["master"]["config.json"] = b'{"model_type": "llama", "x": 1}'
    server.wrong.add("config.json")
    with pytest.raises(ToolError, match=r"model org/tiny: config.json: what ModelScope sent is not what it lists"):
        fetched()
    assert complete(ModelscopeAsset(kind="model", name="org/tiny"), tmp_path / "cache") is None


def test_names_that_leave_the_folder_are_not_downloaded(server, tmp_path):
    files = server.repositories["models/org/tiny"]["master"]
    files["../../../evil.json"] = files["/evil.json"] = b"{}"
    fetched()
    assert not any("evil" in name for name in server.sent())


def test_copy_of_the_package_is_used_without_network(monkeypatch, tmp_path):
    """`modelscope download` leaves no record of dsrun; without a network its folder has to do."""
    place = tmp_path / "cache/models/org--tiny/snapshots/master"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("modelscope_hub.config._default_config", None)
    monkeypatch.setattr("modelscope_hub._legacy_api.REPO_TREE_PAGE_MAX_ATTEMPTS", 1)
    with pytest.raises(
        MissingError, match=r"cannot be fetched: MODELSCOPE_ENDPOINT=http://127.0.0.1:9 cannot be reached"
    ):
        fetched()
    (place / "model.safetensors").write_bytes(b"A")
    assert fetched() == [f"ModelScope cannot be reached: the copy of org/tiny in {place} is used as it is"]


def test_folder_of_older_releases_is_found(tmp_path):
    """Before 1.38: models/OWNER/NAME with ___ for dots, below hub/ in the default cache."""
    asset = ModelscopeAsset(kind="model", name="Org/Tiny-0.5B")
    assert folder_of(asset, tmp_path) == tmp_path / "models/Org--Tiny-0.5B/snapshots/master"
    old = tmp_path / "hub/models/Org/Tiny-0___5B"
    old.mkdir(parents=True)
    (old / "config.json").write_text("{}")
    assert folder_of(asset, tmp_path) == old


def test_damaged_record_counts_as_none(tmp_path):
    place = tmp_path / "models/org--tiny/snapshots/master"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    for content in ("{", "[]", json.dumps({"version": 1, "parts": {"* @ master": 3}}), "null"):
        (place.parent / ".dsrun-master.json").write_text(content)
        assert complete(ModelscopeAsset(kind="model", name="org/tiny"), tmp_path) is None


def test_names_stay_without_modelscope(tmp_path):
    """On the Hub, and for folders, a name is what it is; nothing downloaded is a missing thing."""
    assert local_name("org/tiny", "model", TrainSpec(model="org/tiny"), {}) == "org/tiny"
    (tmp_path / "m").mkdir()
    assert folder({}, model=str(tmp_path / "m")) == str(tmp_path / "m")
    with pytest.raises(MissingError, match="not in ModelScope's cache"):
        folder({"HOME": str(tmp_path)})


def test_cache_folder():
    assert str(cache_of({"HOME": "/h"})) == "/h/.cache/modelscope"
    assert str(cache_of({"HOME": "/h", "MODELSCOPE_CACHE": "/c"})) == "/c"
    assert str(cache_of({"HOME": "/h", "MODELSCOPE_CACHE": "/c"}, "/d")) == "/d"
