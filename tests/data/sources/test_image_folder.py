"""Folders of images, drawn here."""

import pickle
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from learner.data import DataLoaderBuilder, ImageFolder
from learner.util.distribution import install_hint
from tests.support.codes import raises_code

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)


@pytest.fixture
def place(tmp_path):
    """Two classes; in one of them a folder in a folder, a JPEG, a hidden file and a file of another kind."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog" / "young").mkdir(parents=True)
    Image.fromarray(PIXELS).save(tmp_path / "cat" / "b.png")
    Image.fromarray(255 - PIXELS).save(tmp_path / "cat" / "a.PNG")
    Image.new("RGB", (5, 6), (200, 100, 50)).save(tmp_path / "dog" / "young" / "c.jpeg")
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "dog" / "._c.jpeg").write_text("of a Mac")
    return tmp_path


def test_classes_are_directories_and_files_are_sorted(place):
    data = ImageFolder(place, scaled=False)
    assert data.classes == ["cat", "dog"]
    assert [path.removeprefix(f"{place}/") for path in data.files] == ["cat/a.PNG", "cat/b.png", "dog/young/c.jpeg"]
    items = [data[i] for i in range(len(data))]
    assert [item["label"].item() for item in items] == [0, 0, 1]
    assert items[0]["label"].dtype == np.int32
    np.testing.assert_array_equal(items[0]["image"], 255 - PIXELS)
    np.testing.assert_array_equal(items[1]["image"], PIXELS)
    assert np.abs(items[2]["image"].astype(int) - [200, 100, 50]).max() <= 3  # JPEG rounds


def test_pixels_are_scaled_and_batched(place):
    loader = DataLoaderBuilder().batch_size(3).build(ImageFolder(place))
    (batch,) = list(loader)
    assert batch["image"].shape == (3, 6, 5, 3)
    assert batch["image"].dtype == np.float32
    np.testing.assert_allclose(batch["image"][1], PIXELS / 255, rtol=1e-6)


def test_modes_and_sizes(place):
    grey = ImageFolder(place, mode="L", scaled=False)[1]["image"]
    red, green, blue = np.moveaxis(PIXELS.astype(float), -1, 0)
    assert np.abs(grey - (0.299 * red + 0.587 * green + 0.114 * blue)).max() <= 1
    assert ImageFolder(place, mode="RGBA", scaled=False)[1]["image"][..., 3].tolist() == [[255] * 5] * 6
    resized = ImageFolder(place, size=[3, 10], scaled=False)[2]["image"]
    assert resized.shape == (3, 10, 3)
    assert np.abs(resized.astype(int) - [200, 100, 50]).max() <= 3


def test_sixteen_bits_are_not_cut(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.array([[0, 256], [40_000, 65_535]], np.uint16)).save(tmp_path / "a" / "a.png")
    assert ImageFolder(tmp_path, mode="I;16", scaled=False)[0]["image"].tolist() == [[0, 256], [40_000, 65_535]]
    assert ImageFolder(tmp_path, mode="I;16")[0]["image"][1, 1] == 1
    with raises_code("data-image-unreadable", "a.png", "16"):
        ImageFolder(tmp_path)[0]


def test_classes_in_an_order_of_ones_own(place):
    data = ImageFolder(place, classes=["dog", "fox", "cat"])
    assert [data[i]["label"].item() for i in range(3)] == [0, 2, 2]
    with raises_code("data-class-unknown", "'dogs'", name="dog"):
        ImageFolder(place, classes=["cat", "dogs"])


def test_it_can_be_sent(place):
    sent = pickle.loads(pickle.dumps(ImageFolder(place)))
    np.testing.assert_allclose(sent[1]["image"], PIXELS / 255, rtol=1e-6)


def test_images_of_other_sizes_are_named_by_the_batch(place):
    Image.new("RGB", (4, 4)).save(place / "cat" / "c.png")
    with raises_code("batch-item-shapes-differ", "image", "[6, 5, 3]", "0", "1", "3", "[4, 4, 3]", "2"):
        list(DataLoaderBuilder().batch_size(4).build(ImageFolder(place)))


def test_damaged_images_are_named(place):
    whole = (place / "cat" / "b.png").read_bytes()
    for content in (b"", b"GIF89a" + bytes(50), whole[:60], whole[:-30]):
        (place / "cat" / "b.png").write_bytes(content)
        with raises_code("data-image-unreadable", "cat/b.png"):
            ImageFolder(place)[1]


def png(width, height):
    """A PNG file that claims a size, and has one row."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(width + 1))) + chunk(b"IEND", b"")


def test_a_bomb_is_refused_before_it_is_decoded(place):
    (place / "cat" / "b.png").write_bytes(png(9000, 9000))
    with raises_code("data-image-unreadable", "9000", "max_pixels", "67108864"):
        ImageFolder(place)[1]
    (place / "cat" / "b.png").write_bytes(png(10**6, 10**6))
    with raises_code("data-image-unreadable", "b.png"):
        ImageFolder(place)[1]
    with raises_code("data-image-unreadable", "6", "5", "max_pixels", "29"):
        ImageFolder(place, max_pixels=29)[0]


def test_folders_that_are_wrong(place, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    (place / "bird").mkdir()
    for directory, options, expected in [
        (place, {}, ("data-images-missing", ".png", ".jpg", ".jpeg", "bird")),
        (empty, {}, ("data-classes-missing",)),
        (empty / "no", {}, ("data-directory-missing", "no", "directory/CLASS/NAME.png")),
        (place, {"mode": "RBG"}, ("data-image-mode-unknown", "RBG", "'RGB'")),
        (place, {"size": [3]}, ("data-image-size-value", "[3]")),
        (place, {"size": [0, 3]}, ("data-number-value", "size", "0", "1")),
    ]:
        with raises_code(*expected):
            ImageFolder(directory, **options)


def test_without_pillow_the_error_says_what_to_install(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with raises_code("package-missing", "ImageFolder", install_hint("images")):
        ImageFolder(place)
