"""Tests of TarShards with archives of Python's `tarfile`, and with hostile archives."""

import io
import json
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from learner.data import DataLoaderBuilder, TarShards
from tests.support.codes import raises_code

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), np.uint8)
VECTORS = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


def save_to_bytes(save, *options):
    stream = io.BytesIO()
    save(stream, *options)
    return stream.getvalue()


def npy(array, **options):
    return save_to_bytes(lambda stream: np.save(stream, array, **options))


def png(pixels):
    return save_to_bytes(lambda stream: Image.fromarray(pixels).save(stream, "PNG"))


def write(path, files, **options):
    with tarfile.open(path, "w", **options) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def sample(number):
    return {
        "png": png(PIXELS[number]),
        "cls": b"%d\n" % number,
        "json": json.dumps({"width": number}).encode(),
        "npy": npy(VECTORS[number]),
        "txt": f"grün {number}".encode(),
    }


@pytest.fixture
def shards(tmp_path):
    """Return a folder of two archives with two samples each."""
    for shard in (0, 1):
        numbers = (2 * shard, 2 * shard + 1)
        files = {f"train/{n:04}.{extension}": x for n in numbers for extension, x in sample(n).items()}
        write(tmp_path / f"part-{shard}.tar", files)
    return tmp_path


def test_samples_are_decoded_by_their_extensions(shards):
    data = TarShards(shards / "part-*.tar", scaled=False)
    assert repr(data) == "TarShards(4 samples in 2 archives: png, cls, json, npy, txt)"
    for number, item in enumerate(data):
        np.testing.assert_array_equal(item["png"], PIXELS[number])
        np.testing.assert_array_equal(item["npy"], VECTORS[number])
        assert (item["cls"].item(), item["cls"].dtype, item["json"]) == (number, np.int32, {"width": number})
        assert item["txt"] == f"grün {number}"


def test_fields(shards):
    data = TarShards(str(shards / "part-1.tar"), {"image": ["jpg", "png"], "label": "cls"}, size=[3, 4], mode="L")
    item = data[1]
    assert (item["label"].item(), item["image"].shape, item["image"].dtype) == (3, (3, 4), np.float32)
    assert list(item) == ["image", "label"]


def test_alternative_and_compound_extensions(tmp_path):
    files = {"a.seg.png": png(PIXELS[0]), "b.SEG.PNG": png(PIXELS[1]), ".hidden": b"", "README": b"", "c.seg.jpg": b""}
    jpeg = save_to_bytes(lambda stream: Image.new("RGB", (5, 6), (200, 100, 50)).save(stream, "JPEG"))
    data = TarShards(
        write(tmp_path / "a.tar", {**files, "c.seg.jpg": jpeg}), {"mask": ["seg.png", "seg.jpg"]}, scaled=False
    )
    np.testing.assert_array_equal(data[1]["mask"], PIXELS[1])
    assert np.abs(data[2]["mask"].astype(int) - [200, 100, 50]).max() <= 3


def test_batches(shards):
    data = TarShards([str(shards / "part-0.tar"), str(shards / "part-1.tar")], {"x": "npy", "label": "cls"})
    loader = DataLoaderBuilder().batch_size(2).shuffle(seed=0).build(pickle.loads(pickle.dumps(data)))
    epoch = list(loader.epoch(3))
    assert sorted(int(label) for batch in epoch for label in batch["label"]) == [0, 1, 2, 3]
    for batch in epoch:
        np.testing.assert_array_equal(batch["x"], VECTORS[batch["label"]])
    np.testing.assert_array_equal(next(loader.epoch(3, start=1))["label"], epoch[1]["label"])


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names(tmp_path, form):
    folder = "/".join(["directory"] * (12 if form == tarfile.USTAR_FORMAT else 40))
    data = TarShards(write(tmp_path / "a.tar", {f"{folder}/{n}.cls": b"%d" % n for n in range(3)}, format=form))
    assert [item["cls"].item() for item in data] == [0, 1, 2]


def test_fortran_order(tmp_path):
    array = np.asfortranarray(VECTORS)
    np.testing.assert_array_equal(TarShards(write(tmp_path / "a.tar", {"a.npy": npy(array)}))[0]["npy"], VECTORS)


# -- wrong input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "options", "code"),
    [
        ({}, {}, "data-without-rows"),
        ({"a.cls": b"1", "b.txt": b"1"}, {}, "data-sample-fields-differ"),
        ({"a.cls": b"1", "b.cls": b"1", "b.txt": b"1"}, {}, "data-sample-fields-differ"),
        ({"a.cls": b"1"}, {"fields": {"x": "npy"}}, "data-sample-fields-differ"),
        ({"a.jpg": b"1", "a.png": b""}, {"fields": {"x": ["jpg", "png"]}}, "data-sample-fields-differ"),
        ({"a.pickle": b"1"}, {}, "data-tar-extension-unknown"),
        ({"a.cls": b"1"}, {"fields": {"x": "pth"}}, "data-tar-extension-unknown"),
        ({"a.cls": b"1"}, {"fields": "cls"}, "data-tar-fields"),
        ({"a.cls": b"1"}, {"max_bytes": 0}, "data-number-value"),
        ({"a.txt": b"12345"}, {"max_bytes": 4}, "data-sample-too-large"),
        ({"a.png": png(PIXELS[0])}, {"mode": "rgb"}, "data-image-mode-unknown"),
    ],
)
def test_wrong_archives_and_arguments(tmp_path, files, options, code):
    with raises_code(code):
        TarShards(write(tmp_path / "a.tar", files), **options)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.cls", b"cat", "data-sample-unreadable"),
        ("a.json", b"{", "data-sample-unreadable"),
        ("a.json", b"[" * 100_000, "data-sample-unreadable"),
        ("a.txt", b"\xff", "data-sample-unreadable"),
        ("a.npy", npy(np.array([{}], object), allow_pickle=True), "data-sample-unreadable"),
        ("a.npy", npy(VECTORS)[:-1], "data-sample-unreadable"),
        ("a.png", b"no image", "data-image-unreadable"),
        ("a.png", png(PIXELS[0])[:60], "data-image-unreadable"),
    ],
)
def test_undecodable_file_is_named(tmp_path, name, content, code):
    data = TarShards(write(tmp_path / "a.tar", {name: content}))
    with raises_code(code, f"a.tar, sample 0, {name[2:]}"):
        data[0]


def test_max_pixels(tmp_path):
    data = TarShards(write(tmp_path / "a.tar", {"a.png": png(PIXELS[0])}), max_pixels=29)
    with raises_code("data-image-unreadable", "max_pixels is 29"):
        data[0]


def test_duplicate_file(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("a.txt"))
    with raises_code("data-sample-twice"):
        TarShards(path)


def test_missing_archives(tmp_path):
    with raises_code("data-file-missing"):
        TarShards(tmp_path / "a.tar")
    with raises_code("data-files-missing"):
        TarShards(tmp_path / "*.tar")
    with raises_code("data-files-missing"):
        TarShards([])


def test_compressed_archives(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    with raises_code("data-archive-compressed"):
        TarShards(tmp_path / "a.tar.gz")
    with raises_code("data-archive-damaged"):
        TarShards((tmp_path / "a.tar.gz").rename(tmp_path / "a.tar"))


def header(name="a.txt", size=0, kind=tarfile.REGTYPE, **more):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for field, value in more.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "data-archive-damaged"),
        (b"no archive at all" * 100, "data-archive-damaged"),
        (header(size=10**15), "data-archive-damaged"),
        (header(size=600) + b"x" * 512, "data-archive-damaged"),
        (header(size=-512), "data-archive-damaged"),
        (header(kind=tarfile.SYMTYPE, linkname="/etc/passwd"), "data-archive-member"),
        (header(kind=tarfile.LNKTYPE, linkname="b.txt"), "data-archive-member"),
        (header(kind=tarfile.CHRTYPE), "data-archive-member"),
        (header(kind=tarfile.XHDTYPE, size=2**40), "data-archive-damaged"),
        (header(kind=tarfile.XHDTYPE, size=-512), "data-archive-damaged"),
        (header(kind=tarfile.GNUTYPE_LONGNAME, size=2**40), "data-archive-damaged"),
        (header() + b"x" * 512, "data-archive-damaged"),
    ],
)
def test_hostile_archives(tmp_path, content, code):
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    with raises_code(code, "a.tar"):
        TarShards(path)


def test_truncated_archive(tmp_path):
    files = {f"{number}.{name}": b"x" * 700 for number in range(2) for name in ("txt", "log.txt")}
    whole = write(tmp_path / "a.tar", files).read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for length in range(0, end + 512, 256):
        path = tmp_path / "cut.tar"
        path.write_bytes(whole[:length])
        with raises_code("data-archive-damaged", "cut.tar"):
            TarShards(path)
    path.write_bytes(whole[: end + 512])
    assert len(TarShards(path)) == 2


def test_damaged_header(tmp_path):
    path = write(tmp_path / "a.tar", {f"{number}.txt": b"x" * 100 for number in range(3)})
    content = bytearray(path.read_bytes())
    content[1024 + 3] ^= 1
    path.write_bytes(content)
    with raises_code("data-archive-damaged", "a.tar"):
        TarShards(path)


def test_archive_truncated_after_opening(tmp_path):
    path = write(tmp_path / "a.tar", {"a.txt": b"1" * 100})
    data = TarShards(path)
    path.write_bytes(path.read_bytes()[:550])
    with raises_code("data-archive-damaged", "a.tar"):
        data[0]
