"""Data: datasets, and loaders that turn them into batches."""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.data.array_dataset import ArrayDataset
    from learner.data.batcher import Batcher, stack
    from learner.data.bundled import diabetes, digits, stdlib_text
    from learner.data.dataset import Dataset, as_dataset, view
    from learner.data.dataset_report import DatasetReport
    from learner.data.loader import BatchIterator, DataLoader, DataLoaderBuilder
    from learner.data.mixture import Mixture, mix, stream
    from learner.data.packed_stream import PackedStream
    from learner.data.packing import Pack
    from learner.data.padding import Pad
    from learner.data.sharding import PerProcess
    from learner.data.sources import (
        ForeignDataset,
        ImageFolder,
        Lines,
        SQLiteTable,
        Table,
        TarShards,
        TextWindows,
        arrow,
        cifar10,
        cifar100,
        csv,
        fashion_mnist,
        json_lines,
        mnist,
        numpy_arrays,
        parquet,
        read_idx,
    )
    from learner.data.stream_mixture import StreamMixture

    __all__ = [
        "ArrayDataset",
        "BatchIterator",
        "Batcher",
        "DataLoader",
        "DataLoaderBuilder",
        "Dataset",
        "DatasetReport",
        "ForeignDataset",
        "ImageFolder",
        "Lines",
        "Mixture",
        "Pack",
        "PackedStream",
        "Pad",
        "PerProcess",
        "SQLiteTable",
        "StreamMixture",
        "Table",
        "TarShards",
        "TextWindows",
        "arrow",
        "as_dataset",
        "cifar10",
        "cifar100",
        "csv",
        "diabetes",
        "digits",
        "fashion_mnist",
        "json_lines",
        "mix",
        "mnist",
        "numpy_arrays",
        "parquet",
        "read_idx",
        "stack",
        "stdlib_text",
        "stream",
        "view",
    ]

if not TYPE_CHECKING:
    import learner.data.sources.foreign  # noqa: F401  # registers adapters; see `learner.data.dataset.adapter`

    __getattr__, __dir__ = import_lazily(__name__)
