"""Tests of ImageFolder with generated images."""

import pickle
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from learner import LearnerWarning
from learner.data import DataLoaderBuilder, ImageFolder
from learner.util.distribution import install_hint
from tests.support.codes import raises_code

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)


@pytest.fixture
def folder(tmp_path):
    """Return a folder of two classes; one has a nested folder with a JPEG, a hidden file and a text file."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog" / "young").mkdir(parents=True)
    Image.fromarray(PIXELS).save(tmp_path / "cat" / "b.png")
    Image.fromarray(255 - PIXELS).save(tmp_path / "cat" / "a.PNG")
    Image.new("RGB", (5, 6), (200, 100, 50)).save(tmp_path / "dog" / "young" / "c.jpeg")
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "dog" / "._c.jpeg").write_text("of a Mac")
    return tmp_path


def test_classes_are_directories_and_files_are_sorted(folder):
    data = ImageFolder(folder, scaled=False)
    assert data.classes == ["cat", "dog"]
    assert [path.removeprefix(f"{folder}/") for path in data.files] == ["cat/a.PNG", "cat/b.png", "dog/young/c.jpeg"]
    items = [data[i] for i in range(len(data))]
    assert [item["label"].item() for item in items] == [0, 0, 1]
    assert items[0]["label"].dtype == np.int32
    np.testing.assert_array_equal(items[0]["image"], 255 - PIXELS)
    np.testing.assert_array_equal(items[1]["image"], PIXELS)
    assert np.abs(items[2]["image"].astype(int) - [200, 100, 50]).max() <= 3  # JPEG rounds


def test_pixels_are_scaled_and_batched(folder):
    loader = DataLoaderBuilder().batch_size(3).build(ImageFolder(folder))
    (batch,) = list(loader)
    assert batch["image"].shape == (3, 6, 5, 3)
    assert batch["image"].dtype == np.float32
    np.testing.assert_allclose(batch["image"][1], PIXELS / 255, rtol=1e-6)


def test_modes_and_sizes(folder):
    grey = ImageFolder(folder, mode="L", scaled=False)[1]["image"]
    red, green, blue = np.moveaxis(PIXELS.astype(float), -1, 0)
    assert np.abs(grey - (0.299 * red + 0.587 * green + 0.114 * blue)).max() <= 1
    assert ImageFolder(folder, mode="RGBA", scaled=False)[1]["image"][..., 3].tolist() == [[255] * 5] * 6
    resized = ImageFolder(folder, size=[3, 10], scaled=False)[2]["image"]
    assert resized.shape == (3, 10, 3)
    assert np.abs(resized.astype(int) - [200, 100, 50]).max() <= 3


def test_sixteen_bits_are_kept(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.array([[0, 256], [40_000, 65_535]], np.uint16)).save(tmp_path / "a" / "a.png")
    assert ImageFolder(tmp_path, mode="I;16", scaled=False)[0]["image"].tolist() == [[0, 256], [40_000, 65_535]]
    assert ImageFolder(tmp_path, mode="I;16")[0]["image"][1, 1] == 1
    with raises_code("data-image-unreadable", "a.png", 'mode="I;16"'):
        ImageFolder(tmp_path)[0]


def test_images_of_other_formats_are_named_by_a_warning(folder):
    Image.fromarray(PIXELS).save(folder / "dog" / "d.webp")
    Image.fromarray(PIXELS).save(folder / "dog" / "young" / "E.BMP")
    with pytest.warns(LearnerWarning, match=r"2 images .*/dog/d\.webp"):
        data = ImageFolder(folder)
    assert len(data) == 3
    (folder / "fox").mkdir()
    Image.fromarray(PIXELS).save(folder / "fox" / "e.webp")
    with raises_code("data-images-missing", "in fox", "3 images in other formats"):
        ImageFolder(folder)


def test_classes_in_a_given_order(folder):
    data = ImageFolder(folder, classes=["dog", "fox", "cat"])
    assert [data[i]["label"].item() for i in range(3)] == [0, 2, 2]
    with raises_code("data-class-unknown", "'dogs'", name="dog"):
        ImageFolder(folder, classes=["cat", "dogs"])
    with raises_code("data-classes-duplicate", "'dog'"):
        ImageFolder(folder, classes=["cat", "dog", "dog"])


def test_pickling(folder):
    sent = pickle.loads(pickle.dumps(ImageFolder(folder)))
    np.testing.assert_allclose(sent[1]["image"], PIXELS / 255, rtol=1e-6)


def test_images_of_other_sizes_are_named_by_the_batch(folder):
    Image.new("RGB", (4, 4)).save(folder / "cat" / "c.png")
    with raises_code("batch-item-shapes-differ", "image", "[6, 5, 3]", "0", "1", "3", "[4, 4, 3]", "2"):
        list(DataLoaderBuilder().batch_size(4).build(ImageFolder(folder)))


def test_damaged_images_are_named(folder):
    whole = (folder / "cat" / "b.png").read_bytes()
    for content in (b"", b"GIF89a" + bytes(50), whole[:60], whole[:-30]):
        (folder / "cat" / "b.png").write_bytes(content)
        with raises_code("data-image-unreadable", "cat/b.png"):
            ImageFolder(folder)[1]


def png(width, height):
    """Return a PNG file that claims a size, and has one row."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(width + 1))) + chunk(b"IEND", b"")


def test_image_bomb_is_refused_before_decoding(folder):
    (folder / "cat" / "b.png").write_bytes(png(9000, 9000))
    with raises_code("data-image-unreadable", "9000", "max_pixels", "67108864"):
        ImageFolder(folder)[1]
    (folder / "cat" / "b.png").write_bytes(png(10**6, 10**6))
    with raises_code("data-image-unreadable", "b.png"):
        ImageFolder(folder)[1]
    with raises_code("data-image-unreadable", "6", "5", "max_pixels", "29"):
        ImageFolder(folder, max_pixels=29)[0]


def test_wrong_folders_and_arguments(folder, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    (folder / "bird").mkdir()
    for directory, options, expected in [
        (folder, {}, ("data-images-missing", ".png", ".jpg", ".jpeg", "bird")),
        (empty, {}, ("data-classes-missing",)),
        (empty / "no", {}, ("data-directory-missing", "no", "directory/CLASS/NAME.png")),
        (folder, {"mode": "RBG"}, ("data-image-mode-unknown", "RBG", "'RGB'")),
        (folder, {"size": [3]}, ("data-image-size-value", "[3]")),
        (folder, {"size": [0, 3]}, ("data-number-value", "size", "0", "1")),
    ]:
        with raises_code(*expected):
            ImageFolder(directory, **options)


def test_missing_package_raises_with_install_command(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with raises_code("package-missing", "ImageFolder", install_hint("images")):
        ImageFolder(folder)
