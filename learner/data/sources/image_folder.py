"""Folders of images, through Pillow: a directory for each class, and an image for each item, decoded on access."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.data.dataset import Dataset
from learner.data.indices import item_number
from learner.data.sources.input_files import PathLike, folder, readable, refuse_special
from learner.errors import LearnerError, near
from learner.util.number_checks import check_int
from learner.util.optional import import_optional

SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
MODES = {"RGB": np.uint8, "L": np.uint8, "RGBA": np.uint8, "I;16": np.uint16}


class ImageFolder(Dataset):
    """Images in folders: `directory/CLASS/.../NAME.png` (or `.jpg`, `.jpeg`), with the class as the label.

    Args:
      directory: with a directory for each class.
      size: `[height, width]` to which every image is resized (bilinear). Default: images keep their sizes, and a batch
        needs equal ones, or a batcher that pads.
      mode: "RGB", "RGBA" (with transparency) or "L" (grey), to which images are converted; "I;16" for 16 bits of grey,
        which are not converted.
      classes: the names of the directories in the order of their numbers. Default: all directories, sorted. Give them
        if several folders must agree, and not all have every class.
      scaled: return pixels as float32 from 0 to 1; otherwise as integers.
      max_pixels: an image that claims more is an error, before it is decoded.

    Attributes:
      classes: the names of the labels.
      files: the path of each image.

    Items are `image` float32 `[height, width, 3]` (RGBA: 4; grey: `[height, width]`) and `label` int32.

    Raises:
      LearnerError: Pillow is not installed (the extra `images`); there is no such directory, no class in it, a
        class without images; or, when it is read, an image that is damaged or too large.

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
        import_optional("PIL.Image", "images", "ImageFolder", "Pillow")
        root = folder(directory, "ImageFolder", "it needs directory/CLASS/NAME.png").absolute()
        if mode not in MODES:
            raise LearnerError(
                f"mode is {mode!r}: {near(str(mode), list(MODES))}", code="data-image-mode-unknown", mode=mode
            )
        if size is not None and (not isinstance(size, list | tuple) or len(size) != 2):
            raise LearnerError(f"size is {size!r}: give [height, width]", code="data-image-size-value", size=size)
        self._size = None if size is None else tuple(check_int("size", side, least=1) for side in size)
        self._mode, self._scaled = mode, scaled
        self._max_pixels = check_int("max_pixels", max_pixels, least=1)
        self.classes = _classes(root, classes)
        images = [_images(root / name) if (root / name).is_dir() else [] for name in self.classes]
        empty = [name for name, files in zip(self.classes, images, strict=True) if not files and classes is None]
        if empty or not any(images):
            raise LearnerError(
                f"ImageFolder: {root} has no {', '.join(SUFFIXES)} in {', '.join(empty or self.classes)}",
                code="data-images-missing",
            )
        self.files = [path for files in images for path in files]
        self._labels = np.repeat(np.arange(len(images), dtype=np.int32), [len(files) for files in images])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = item_number(index, len(self), "ImageFolder")
        image = self._decoded(self.files[index])
        if self._scaled:
            image = np.divide(image, np.iinfo(image.dtype).max, dtype=np.float32)
        return {"image": image, "label": self._labels[index]}

    def _decoded(self, path: str) -> np.ndarray:
        pillow = import_optional("PIL.Image", "images", "ImageFolder", "Pillow")
        refuse_special(path, "ImageFolder")  # a named pipe would block, here or in a worker
        try:
            with pillow.open(path, formats=FORMATS) as image:
                width, height = image.size
                if width * height > self._max_pixels:
                    raise LearnerError(
                        f"{path} claims {height} by {width} pixels, and max_pixels is {self._max_pixels}",
                        code="data-image-too-large",
                        path=path,
                        width=width,
                    )
                return self._array(image, pillow)
        except LearnerError as error:
            raise LearnerError(str(error), code="data-image-unreadable") from None
        except Exception as error:  # a damaged image raises errors of many kinds
            raise LearnerError(
                f"{path} cannot be read as an image: {error}", code="data-image-unreadable", path=path
            ) from error

    def _array(self, image: Any, pillow: Any) -> np.ndarray:
        if image.mode != self._mode and (image.mode.startswith(("I", "F")) or self._mode == "I;16"):
            raise LearnerError(
                f"{image.filename} has the mode {image.mode}, which is not converted to {self._mode}",
                code="data-image-mode-unconvertible",
            )
        converted = image if image.mode == self._mode else image.convert(self._mode)
        if self._size is not None and converted.size != self._size[::-1]:
            converted = converted.resize(self._size[::-1], pillow.Resampling.BILINEAR)
        return np.array(converted, MODES[self._mode])


def _classes(root: Path, classes: Sequence[str] | None) -> list[str]:
    with readable(root):
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise LearnerError(
            f"ImageFolder: {root} has no directories; it needs {root}/CLASS/NAME.png", code="data-classes-missing"
        )
    if classes is None:
        return names
    for name in names:
        if name not in classes:
            raise LearnerError(
                f"ImageFolder: {root} has the directory {name!r}, which is no class: {near(name, classes)}",
                code="data-class-unknown",
                name=name,
            )
    return list(classes)


def _images(root: Path) -> list[str]:
    """Return the paths of all images below a directory, sorted."""
    return sorted(
        os.path.join(directory, name)
        for directory, _, names in os.walk(root)
        for name in names
        if name.lower().endswith(SUFFIXES)
    )
