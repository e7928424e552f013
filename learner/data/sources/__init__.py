"""Sources of data: files of many formats, and data of other libraries. Nothing is downloaded."""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.data.dataset import as_dataset
    from learner.data.sources.cifar import cifar10, cifar100
    from learner.data.sources.columnar import arrow, parquet
    from learner.data.sources.database import SQLiteTable
    from learner.data.sources.delimited import csv
    from learner.data.sources.foreign import ForeignDataset
    from learner.data.sources.idx import fashion_mnist, mnist, read_idx
    from learner.data.sources.image_folder import ImageFolder
    from learner.data.sources.ndjson import json_lines
    from learner.data.sources.numpy_files import numpy_arrays
    from learner.data.sources.table_arrays import Table
    from learner.data.sources.tar_shards import TarShards
    from learner.data.sources.text_files import Lines, TextWindows

    __all__ = [
        "ForeignDataset",
        "ImageFolder",
        "Lines",
        "SQLiteTable",
        "Table",
        "TarShards",
        "TextWindows",
        "arrow",
        "as_dataset",
        "cifar10",
        "cifar100",
        "csv",
        "fashion_mnist",
        "json_lines",
        "mnist",
        "numpy_arrays",
        "parquet",
        "read_idx",
    ]

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__)
