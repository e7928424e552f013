"""Step 4: read the record, and ask the model. `python inference.py --help` says what it takes."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from data import DigitBatcher, Item, rows
from flax import nnx
from model import Model
from training import TrainingConfig

from learner.records import load_model


def load(directory: str) -> Model:
    """The trained model: made as the config says, with the weights of the record."""
    config = TrainingConfig.load(Path(directory) / "training.json")
    model = load_model(Path(directory) / "model.mpk.gz", config.model.init(nnx.Rngs(0)))
    model.eval()  # dropout off
    return model


def infer(model: Model, items: Sequence[Item]) -> np.ndarray:
    """The digit in each image, int `[items]`."""
    return np.asarray(model(DigitBatcher()(items)["image"])).argmax(-1)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Reads some digits that the training has not seen.")
    parser.add_argument("--directory", default="runs/guide", help="what training.py left")
    parser.add_argument("--mnist", help="a directory with the IDX files of MNIST; default: the digits of scikit-learn")
    parser.add_argument("--count", type=int, default=8, help="how many digits")
    arguments = parser.parse_args()
    data = rows("valid", arguments.mnist)
    items = [data[index] for index in range(arguments.count)]
    predicted = infer(load(arguments.directory), items)
    for item, digit in zip(items, predicted, strict=True):
        print(f"predicted {digit}, labelled {item['label']}")


if __name__ == "__main__":
    main()
