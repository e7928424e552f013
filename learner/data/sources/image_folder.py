"""Folders of images, through Pillow: a directory for each class, and an image for each item, decoded on access."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.data.dataset import Dataset
from learner.data.indices import item_number
from learner.data.input_files import PathLike, folder, readable, refuse_special
from learner.data.sources.image_decoder import ImageDecoder
from learner.errors import LearnerError, near
from learner.util.text import count
from learner.util.user_warnings import warn

SUFFIXES = (".png", ".jpg", ".jpeg")
OTHER_SUFFIXES = (".avif", ".bmp", ".gif", ".heic", ".jfif", ".tif", ".tiff", ".webp")  # images that are not read


class ImageFolder(Dataset):
    """Images in folders: `directory/CLASS/.../NAME.png` (or `.jpg`, `.jpeg`), with the class as the label.

    Args:
      directory: the directory that contains a directory for each class.
      size: `[height, width]` to which every image is resized (bilinear). Default: images keep their sizes, and a batch
        needs equal ones, or a batcher that pads.
      mode: "RGB", "RGBA" (with transparency) or "L" (grey), to which images are converted; "I;16" for 16-bit grey
        images, which are not converted.
      classes: the names of the directories, each once, in the order of their numbers. Default: all directories, sorted.
        Pass them if several folders must agree, and not all have every class.
      scaled: return pixels as float32 from 0 to 1; otherwise as integers.
      max_pixels: the maximum number of pixels; an image that claims more is an error, before it is decoded. Pillow has
        a limit of its own: it warns above `PIL.Image.MAX_IMAGE_PIXELS`, 89,478,485, and raises above twice as many.

    Attributes:
      classes: the names of the labels.
      labels: the names of the labels by field.
      files: the path of each image.

    Items are `image` float32 `[height, width, 3]` (RGBA: 4; grey: `[height, width]`) and `label` int32. Pixels are in
    the order of the file: the orientation that cameras and phones note beside them (EXIF) is not applied.

    Raises:
      LearnerError: Pillow is not installed (extra `images`); the directory does not exist or has no classes, or a class
        has no images; or, on access, an image is damaged or too large.

    >>> import tempfile
    >>> from PIL import Image
    >>> place = Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (place / name).mkdir()
    ...     Image.new("RGB", (6, 4), "white").save(place / name / "0.png")
    >>> images = ImageFolder(place, size=[8, 8])
    >>> len(images), images.classes, images[1]["label"].item(), images[1]["image"].shape
    (2, ['cat', 'dog'], 1, (8, 8, 3))
    """

    def __init__(
        self,
        directory: PathLike,
        size: list[int] | None = None,
        mode: str = "RGB",
        classes: list[str] | None = None,
        scaled: bool = True,
        max_pixels: int = 2**26,
    ) -> None:
        self._decoder = ImageDecoder("ImageFolder", size, mode, scaled, max_pixels)
        root = folder(directory, "ImageFolder", "it needs directory/CLASS/NAME.png").absolute()
        self.classes = _classes(root, classes)
        others: list[str] = []
        images = [_images(root / name, others) for name in self.classes]
        hint = f"{count(len(others), 'image')} in other formats, such as {min(others)}: convert them" if others else ""
        empty = [name for name, files in zip(self.classes, images, strict=True) if not files and classes is None]
        if empty or not any(images):
            raise LearnerError(
                f"ImageFolder: {root} has no {', '.join(SUFFIXES)} in {', '.join(empty or self.classes)}"
                + (f"; it has {hint}" if hint else ""),
                code="data-images-missing",
            )
        if hint:
            warn(f"ImageFolder reads only {', '.join(SUFFIXES)}, and leaves out {hint}")
        self.files = [path for files in images for path in files]
        self.labels = {"label": self.classes}
        self._labels = np.repeat(np.arange(len(images), dtype=np.int32), [len(files) for files in images])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = item_number(index, len(self), "ImageFolder")
        path = self.files[index]
        refuse_special(path, "ImageFolder")  # a named pipe would block, here or in a worker
        return {"image": self._decoder.decode(path, path), "label": self._labels[index]}


def _classes(root: Path, classes: Sequence[str] | None) -> list[str]:
    with readable(root):
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise LearnerError(
            f"ImageFolder: {root} has no directories; it needs {root}/CLASS/NAME.png", code="data-classes-missing"
        )
    if classes is None:
        return names
    if len(set(classes)) < len(classes):
        raise LearnerError(
            f"ImageFolder: classes is {list(classes)}; it needs each directory once",
            code="data-classes-duplicate",
        )
    for name in names:
        if name not in classes:
            raise LearnerError(
                f"ImageFolder: {root} has the directory {name!r}, which is not a class: {near(name, classes)}",
                code="data-class-unknown",
                name=name,
            )
    return list(classes)


def _images(root: Path, others: list[str]) -> list[str]:
    """Return the paths of all images below a directory, sorted, without hidden files; none if it does not exist. Those
    in formats that are not read are added to `others`.
    """
    images = []
    for directory, _, names in os.walk(root):
        visible = [name for name in names if not name.startswith(".")]  # ._1.png is not an image
        images += [os.path.join(directory, name) for name in visible if name.lower().endswith(SUFFIXES)]
        others += [os.path.join(directory, name) for name in visible if name.lower().endswith(OTHER_SUFFIXES)]
    return sorted(images)
