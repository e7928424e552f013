"""Images as arrays, through Pillow, with limits that are checked before an image is decoded."""

import dataclasses
from pathlib import Path
from typing import IO, Any

import numpy as np

from learner.errors import LearnerError, near
from learner.util.number_checks import check_int
from learner.util.optional import import_optional

FORMATS = ("PNG", "JPEG")
MODES = {"RGB": np.uint8, "L": np.uint8, "RGBA": np.uint8, "I;16": np.uint16}


@dataclasses.dataclass(frozen=True)
class ImageDecoder:
    """Settings of decoded images; see `ImageFolder`.

    Attributes:
      reader: the name of the reader that needs Pillow, for messages.
    """

    reader: str
    size: tuple[int, ...] | list[int] | None
    mode: str
    scaled: bool
    max_pixels: int

    def __post_init__(self) -> None:
        import_optional("PIL.Image", "images", self.reader, "Pillow")
        if self.mode not in MODES:
            raise LearnerError(
                f"mode is {self.mode!r}: {near(str(self.mode), list(MODES))}",
                code="data-image-mode-unknown",
                mode=self.mode,
            )
        if self.size is not None and (not isinstance(self.size, list | tuple) or len(self.size) != 2):
            raise LearnerError(
                f"size is {self.size!r}: give [height, width]", code="data-image-size-value", size=self.size
            )
        for side in self.size or ():
            check_int("size", side, least=1)
        check_int("max_pixels", self.max_pixels, least=1)

    def decode(self, file: str | Path | IO[bytes], name: str) -> np.ndarray:
        """Return the pixels `[height, width, channels]` of an image; grey images have no channels.

        Args:
          file: the path of the image, or its bytes.
          name: the name of the image, for messages.

        Raises:
          LearnerError: the image is damaged, too large, or of a mode that is not converted.
        """
        pillow = import_optional("PIL.Image", "images", self.reader, "Pillow")
        try:
            with pillow.open(file, formats=FORMATS) as image:
                width, height = image.size
                if width * height > self.max_pixels:
                    raise LearnerError(
                        f"{name} claims {height} by {width} pixels, and max_pixels is {self.max_pixels}",
                        code="data-image-too-large",
                        path=name,
                        width=width,
                    )
                pixels = self._array(image, name, pillow)
        except LearnerError as error:
            raise LearnerError(str(error), code="data-image-unreadable") from None
        except Exception as error:  # a damaged image raises errors of many kinds
            raise LearnerError(
                f"{name} cannot be read as an image: {error}", code="data-image-unreadable", path=name
            ) from error
        return np.divide(pixels, np.iinfo(pixels.dtype).max, dtype=np.float32) if self.scaled else pixels

    def _array(self, image: Any, name: str, pillow: Any) -> np.ndarray:
        if image.mode != self.mode and (image.mode.startswith(("I", "F")) or self.mode == "I;16"):
            remedy = 'mode="I;16" reads it' if image.mode == "I;16" else "store all images with as many bits"
            raise LearnerError(
                f"{name} has the mode {image.mode}, which is not converted to {self.mode}: {remedy}",
                code="data-image-mode-unconvertible",
            )
        converted = image if image.mode == self.mode else image.convert(self.mode)
        if self.size is not None and converted.size != (self.size[1], self.size[0]):
            converted = converted.resize((self.size[1], self.size[0]), pillow.Resampling.BILINEAR)
        return np.array(converted, MODES[self.mode])
