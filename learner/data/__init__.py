"""Data: datasets, and loaders that turn them into batches."""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.data.array_dataset import ArrayDataset as ArrayDataset
    from learner.data.batcher import Batcher as Batcher
    from learner.data.batcher import stack as stack
    from learner.data.bundled import diabetes as diabetes
    from learner.data.bundled import digits as digits
    from learner.data.bundled import stdlib_text as stdlib_text
    from learner.data.dataset import Dataset as Dataset
    from learner.data.dataset import as_dataset as as_dataset
    from learner.data.dataset import view as view
    from learner.data.dataset_report import DatasetReport as DatasetReport
    from learner.data.loader import BatchIterator as BatchIterator
    from learner.data.loader import DataLoader as DataLoader
    from learner.data.loader import DataLoaderBuilder as DataLoaderBuilder
    from learner.data.mixture import Mixture as Mixture
    from learner.data.mixture import mix as mix
    from learner.data.mixture import stream as stream
    from learner.data.packed_stream import PackedStream as PackedStream
    from learner.data.packing import Pack as Pack
    from learner.data.padding import Pad as Pad
    from learner.data.sharding import PerProcess as PerProcess
    from learner.data.sources import ForeignDataset as ForeignDataset
    from learner.data.sources import ImageFolder as ImageFolder
    from learner.data.sources import Lines as Lines
    from learner.data.sources import SQLiteTable as SQLiteTable
    from learner.data.sources import Table as Table
    from learner.data.sources import TarShards as TarShards
    from learner.data.sources import TextWindows as TextWindows
    from learner.data.sources import arrow as arrow
    from learner.data.sources import cifar10 as cifar10
    from learner.data.sources import cifar100 as cifar100
    from learner.data.sources import csv as csv
    from learner.data.sources import fashion_mnist as fashion_mnist
    from learner.data.sources import json_lines as json_lines
    from learner.data.sources import mnist as mnist
    from learner.data.sources import numpy_arrays as numpy_arrays
    from learner.data.sources import parquet as parquet
    from learner.data.sources import read_idx as read_idx
    from learner.data.stream_mixture import StreamMixture as StreamMixture

if not TYPE_CHECKING:
    import learner.data.sources.foreign  # noqa: F401  # registers adapters; see `learner.data.dataset.adapter`

    __getattr__, __dir__ = import_lazily(__name__)
