"""Data: datasets, and loaders that turn them into batches."""

from learner.data.batcher import Batcher, stack
from learner.data.bundled import diabetes, digits, stdlib_text
from learner.data.dataset import ArrayDataset, Dataset
from learner.data.loader import BatchIterator, DataLoader, DataLoaderBuilder

__all__ = [
    "ArrayDataset",
    "BatchIterator",
    "Batcher",
    "DataLoader",
    "DataLoaderBuilder",
    "Dataset",
    "diabetes",
    "digits",
    "stack",
    "stdlib_text",
]
