"""Tests of save_model and load_model: extensions, recorders, and atomic writes."""

import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from learner import load_model, save_model
from learner.records import (
    BinRecorder,
    CompactRecorder,
    JsonRecorder,
    MessagePackRecorder,
    SafetensorsRecorder,
    recorder_for,
)
from learner.records.model_files import RECORDERS
from tests.support.codes import raises_code

MODEL = {"w": jnp.float32([0.5, 0.25]), "n": jnp.int32(3)}
TARGET = {"w": jnp.zeros(2), "n": jnp.int32(0)}


@pytest.mark.parametrize(
    ("extension", "start"),
    [
        (".mpk", b"\x84\xa6format"),
        (".json", b'{"format"'),
        (".safetensors", (184).to_bytes(8, "little")),
        *((f"{name}.gz", b"\x1f\x8b") for name in (".mpk", ".json", ".safetensors")),
    ],
)
def test_the_extension_chooses_the_format(tmp_path, extension, start):
    path = tmp_path / f"my.model{extension}"
    save_model(path, MODEL)
    assert path.read_bytes().startswith(start)
    assert os.listdir(tmp_path) == [path.name]
    loaded = load_model(str(path), TARGET)
    assert loaded["w"].tolist() == [0.5, 0.25]
    assert loaded["n"] == 3
    assert TARGET["n"] == 0
    assert path.read_bytes() == RECORDERS[extension].to_bytes(MODEL)


def test_a_recorder_chooses_the_precision(tmp_path):
    for recorder in (CompactRecorder(), JsonRecorder("double", gzip=True), SafetensorsRecorder("half")):
        path = tmp_path / f"model{recorder.extension}"
        save_model(path, MODEL, recorder)
        assert path.read_bytes() == recorder.to_bytes(MODEL)
        assert load_model(path, TARGET)["w"].tolist() == [0.5, 0.25]
        assert load_model(path, TARGET, recorder=recorder)["n"] == 3


@pytest.mark.parametrize("recorder", [CompactRecorder(), BinRecorder("half"), JsonRecorder(gzip=True)], ids=repr)
@pytest.mark.parametrize("name", ["model", "model.v1", "mödel 1"])
def test_a_recorder_adds_its_extension(tmp_path, name, recorder):
    path = save_model(tmp_path / name, MODEL, recorder)
    assert path == tmp_path / f"{name}{recorder.extension}"
    assert os.listdir(tmp_path) == [path.name]
    assert load_model(tmp_path / name, TARGET)["n"] == 3
    assert load_model(str(tmp_path / name), TARGET, recorder=recorder)["n"] == 3


def test_name_without_extension_must_match_one_file(tmp_path):
    save_model(tmp_path / "model", MODEL, CompactRecorder())
    save_model(tmp_path / "model", MODEL, BinRecorder())
    with raises_code("record-path-ambiguous", "model", "model.mpk.gz", "model.bin"):
        load_model(tmp_path / "model", TARGET)
    assert load_model(tmp_path / "model", TARGET, recorder=BinRecorder())["n"] == 3
    with raises_code("record-file-missing", "there is no file", "model.json", "did you mean"):
        load_model(tmp_path / "model", TARGET, recorder=JsonRecorder())


def test_bin_is_safetensors_under_another_name(tmp_path):
    path = save_model(tmp_path / "model", MODEL, BinRecorder())
    assert path.read_bytes() == SafetensorsRecorder().to_bytes(MODEL)
    path.rename(tmp_path / "model.safetensors")
    assert load_model(tmp_path / "model", TARGET)["w"].tolist() == [0.5, 0.25]


def test_a_bin_file_of_pytorch_is_refused(tmp_path):
    """PyTorch's file is a pickle in a zip archive."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(60))
    with raises_code("record-unreadable"):
        load_model(tmp_path / "pytorch_model.bin", TARGET)


@pytest.mark.parametrize(
    ("name", "recorder", "code", "values"),
    [
        ("model.json", CompactRecorder(), "record-extension-mismatch", ("model.json", "CompactRecorder()", ".mpk.gz")),
        ("model.mpk", CompactRecorder(), "record-extension-mismatch", (".mpk.gz",)),
        ("model.mpk.gz", MessagePackRecorder(), "record-extension-mismatch", (".mpk",)),
        ("model", MessagePackRecorder, "record-recorder-type", ("<class",)),
        ("model", None, "record-extension-unknown", ("model", "'.mpk'", "'.mpk.gz'", "'.json'")),
        ("model.safetensor", None, "record-extension-unknown", ("'.safetensors'",)),
        ("model.gz", None, "record-extension-unknown", ()),
        ("mpk", None, "record-extension-unknown", ()),
        ("model.mpk", CompactRecorder, "record-recorder-type", ("<class",)),
        ("model.mpk", "compact", "record-recorder-type", ("compact",)),
        ("", None, "record-path-type", ()),
        (None, None, "record-path-type", ("NoneType",)),
    ],
)
def test_wrong_extensions_and_recorders(tmp_path, monkeypatch, name, recorder, code, values):
    monkeypatch.chdir(tmp_path)
    for call in (lambda: save_model(name, MODEL, recorder), lambda: load_model(name, TARGET, recorder=recorder)):
        with raises_code(code, *values):
            call()
    assert os.listdir(tmp_path) == []


def test_saving_is_atomic(tmp_path):
    """A failed save leaves the earlier file, and a successful one replaces it by a rename."""
    path = tmp_path / "model.mpk.gz"
    save_model(path, MODEL)
    before = path.read_bytes()
    with raises_code("record-precision-too-low", precision="half"):
        save_model(path, {**MODEL, "w": jnp.float32([1e6, 0])}, CompactRecorder())
    deleted = jnp.arange(3.0)
    deleted.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        save_model(path, {"w": deleted})
    assert path.read_bytes() == before
    os.link(path, tmp_path / "held")
    save_model(path, TARGET)
    assert (tmp_path / "held").read_bytes() == before  # a new file has the name: no reader sees a partial one
    (tmp_path / "held").unlink()
    assert load_model(path, MODEL)["w"].tolist() == [0, 0]
    assert os.listdir(tmp_path) == ["model.mpk.gz"]


def test_two_threads_save_to_one_path(tmp_path, monkeypatch):
    path = tmp_path / "model.mpk"
    write = MessagePackRecorder.write

    def write_twice(recorder, model, file):  # another thread saves while the file is open
        monkeypatch.undo()
        save_model(path, TARGET)
        write(recorder, model, file)

    monkeypatch.setattr(MessagePackRecorder, "write", write_twice)
    save_model(path, MODEL)
    assert load_model(path, TARGET)["n"] == 3
    assert os.listdir(tmp_path) == ["model.mpk"]


def test_missing_files_and_directories(tmp_path):
    with raises_code("record-directory-missing", "absent", "model.mpk"):
        save_model(tmp_path / "absent" / "model.mpk", MODEL)
    with raises_code("record-file-missing", "there is no file", "absent/model.mpk"):
        load_model(tmp_path / "absent" / "model.mpk", MODEL)
    save_model(tmp_path / "model-3.mpk.gz", MODEL)
    with raises_code("record-file-missing", "there is no file", "model-4.mpk.gz", "'model-3.mpk.gz'"):
        load_model(tmp_path / "model-4.mpk.gz", MODEL)
    (tmp_path / "run.mpk").mkdir()
    with raises_code("record-file-missing", "run.mpk", "load_model", "save_model"):
        load_model(tmp_path / "run.mpk", MODEL)


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "model.json"
    path.write_text("{}")
    with raises_code("record-unreadable", "model.json"):
        load_model(path, MODEL)
    save_model(path, MODEL)
    with raises_code("record-model-differs", "model.json", "(JSON, version 2, full precision)", "1"):
        load_model(path, {**MODEL, "w": np.zeros(3)})


def test_every_recorder_has_its_extension():
    assert {recorder_for(f"x{name}") for name in RECORDERS} == set(RECORDERS.values())
    assert recorder_for(Path("a.b/model.json.gz")) == JsonRecorder(gzip=True)
