"""`learner data`: a report on the data of a config before training."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from learner.builder import LearnerBuilder
from learner.cli.configs.builder_options import methods
from learner.cli.configs.config import RunConfig
from learner.cli.configs.overrides import apply_overrides, read_yaml
from learner.cli.configs.schema import PARTS
from learner.cli.parsing import Parser
from learner.data.dataset import Dataset
from learner.data.dataset_report import DatasetReport
from learner.data.loader import DataLoaderBuilder
from learner.data.stream_mixture import StreamMixture
from learner.errors import LearnerError
from learner.util.text import printable

DATA = """\
Prints a report on the data of a config: fields, shapes, types, frequencies of labels, ranges, numbers that are not
finite, a few items, and the rows read per second. No model is created and nothing is trained."""

NEEDED = "The config needs only `train` and `valid`. The code that it names is imported and run."

LIMITS = {
    "rows": (100_000, "rows to read of each split, up to the end of a batch"),
    "seconds": (20, "time limit of each split"),
    "items": (3, "items to print"),
}


def data(words: Sequence[str]) -> int:
    """`learner data CONFIG [--KEY=VALUE ...] [-o DIR]`."""
    parser = Parser("data", DATA, "CONFIG [--KEY=VALUE ...] [-o DIR]", NEEDED, keys=True)
    parser.add_config()
    for name, (default, about) in LIMITS.items():
        parser.add_argument(f"--{name}", metavar="N", default=str(default), help=f"{about} (default: {default})")
    about = "also write the text to DIR/data.txt, and the first images of each split to DIR/SPLIT.png"
    parser.add_argument("-o", "--output", metavar="DIR", help=about)
    line = parser.read(words)
    limits = {name: _limit(name, getattr(line, name)) for name in LIMITS}
    output = _directory(line.output) if line.output is not None else None
    texts = []
    for name, each in _splits(apply_overrides(read_yaml(line.config), line.overrides)):
        report = DatasetReport(each, name, rows=limits["rows"], seconds=limits["seconds"], items=limits["items"])
        texts.append("\n".join(map(printable, str(report).split("\n"))))
        print(("\n\n" if len(texts) > 1 else "") + texts[-1], flush=True)
        if output is not None and report.image_fields():
            number = report.save_images(output / f"{name}.png")
            print(f"the first {number} images: {printable(str(output / f'{name}.png'))}")
    if output is not None:
        (output / "data.txt").write_text("\n\n\n".join(texts) + "\n", encoding="utf-8")
    return 0


def _splits(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the data of a config by split. For the rest of the config, only the names of the keys are read."""
    others = {*PARTS, *methods(LearnerBuilder)} - {"train", "valid", "seed"}
    needed = () if "valid" in content else ("train",)
    config = RunConfig({key: value for key, value in content.items() if key not in others}, needed=needed)
    config.check()
    for key, part in config.sources.items():
        splits = {f"{key}-{name}": each for name, each in part.items()} if isinstance(part, dict) else {key: part}
        for name, each in splits.items():
            yield name, _as_loader(each.make(), content.get("with_batch_size"))


def _as_loader(dataset: Any, batch_size: Any) -> Any:
    """Return a loader if the config has `with_batch_size` and the data is a dataset; otherwise return the data."""
    if batch_size and isinstance(dataset, StreamMixture) and dataset.batch_size is None:
        return dataset.batch(batch_size)
    if not batch_size or not isinstance(dataset, Dataset):
        return dataset
    return DataLoaderBuilder().batch_size(batch_size).build(dataset)


def _limit(name: str, text: str) -> int:
    if not text.isdecimal() or (not int(text) and name != "items"):
        raise LearnerError(f"--{name} is {text!r}: give a whole number, 1 or more", code="cli-number-value", name=name)
    return int(text)


def _directory(path: str) -> Path:
    found = Path(path).expanduser()
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LearnerError(
            f"the output is {found}, which cannot be a directory: {error}", code="cli-output-not-directory"
        ) from error
    return found
