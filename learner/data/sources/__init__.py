"""Sources of data: files of many formats, and data of other libraries. Nothing is downloaded."""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.data.dataset import as_dataset as as_dataset
    from learner.data.sources.cifar import cifar10 as cifar10
    from learner.data.sources.cifar import cifar100 as cifar100
    from learner.data.sources.columnar import arrow as arrow
    from learner.data.sources.columnar import parquet as parquet
    from learner.data.sources.database import SQLiteTable as SQLiteTable
    from learner.data.sources.delimited import csv as csv
    from learner.data.sources.foreign import ForeignDataset as ForeignDataset
    from learner.data.sources.idx import fashion_mnist as fashion_mnist
    from learner.data.sources.idx import mnist as mnist
    from learner.data.sources.idx import read_idx as read_idx
    from learner.data.sources.image_folder import ImageFolder as ImageFolder
    from learner.data.sources.ndjson import json_lines as json_lines
    from learner.data.sources.numpy_files import numpy_arrays as numpy_arrays
    from learner.data.sources.table_arrays import Table as Table
    from learner.data.sources.tar_shards import TarShards as TarShards
    from learner.data.sources.text_files import Lines as Lines
    from learner.data.sources.text_files import TextWindows as TextWindows

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__)
