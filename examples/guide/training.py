"""Step 3: train, and leave a record. `python training.py --help` says what it takes."""

import argparse
from pathlib import Path

from data import loaders
from flax import nnx
from model import ModelConfig

from learner import Config, LearnerBuilder, LearnerError, LearningResult
from learner.metrics import Accuracy
from learner.optimizers import Adam, OptimizerConfig
from learner.records import CompactRecorder, save_model


class TrainingConfig(Config):
    """The settings that determine the result of a training."""

    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = Adam()
    num_epochs: int = 8
    batch_size: int = 64
    lr: float = 2e-3
    seed: int = 42


def train(config: TrainingConfig, directory: str, mnist: str | None = None) -> LearningResult:
    """Trains a model, and leaves the record of the best one in `directory`: its config, and its weights."""
    train_loader, valid_loader = loaders(config.batch_size, config.seed, mnist)
    learner = (
        LearnerBuilder(directory)
        .metrics(Accuracy())
        .num_epochs(config.num_epochs)
        .seed(config.seed)
        .with_file_checkpointer(keep_last=1, keep_best=1)
        .summary()
        .build(config.model.init(nnx.Rngs(config.seed)), config.optimizer, config.lr)
    )
    result = learner.fit(train_loader, valid_loader)
    config.save(Path(directory) / "training.json")
    save_model(Path(directory) / "model.mpk.gz", result.best_model, CompactRecorder())
    return result


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Trains a network that reads digits.")
    parser.add_argument("--config", help="a TrainingConfig, as YAML or JSON; default: its defaults")
    parser.add_argument("--directory", default="runs/guide", help="where the run leaves its files")
    parser.add_argument("--mnist", help="a directory with the IDX files of MNIST; default: the digits of scikit-learn")
    arguments = parser.parse_args()
    try:
        config = TrainingConfig.load(arguments.config) if arguments.config else TrainingConfig()
        train(config, arguments.directory, arguments.mnist)
    except LearnerError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
