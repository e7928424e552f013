"""A tree of arrays in Orbax's format, written through TensorStore by a run of one process.

Orbax reads it like its own: a zarr array for each leaf in one OCDBT database, and two JSON files about the tree.
Orbax's writer takes most of the time of a small save: threads, event loops, and a database per process that is merged
into another one (see `docs/reliability.md`).
"""

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from learner.checkpoint.stored_files import is_local

FILE_BYTES = 1 << 26  # of a file of the database, so that checksums of a large one are computed in parallel
DICT_KEY = 2  # Orbax's number for a key of a dict
COMMITTED = "commit_success.txt"  # in an object store, Orbax treats a directory with this file as complete
RETRIES = {"max_retries": 6}  # of a request to an object store: a minute, as each waits twice as long
HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"


def write_pytree(directory: Any, name: str, tree: Mapping[str, Any]) -> None:
    """Write a tree as the item `name` of a new directory, as Orbax's `PyTreeCheckpointHandler` would. Nothing is
    flushed to the disk.

    Args:
      directory: the directory of the checkpoint: a `pathlib.Path`, or one of `etils.epath` in Google Cloud Storage.
      name: the name of the item.
      tree: nested dicts of arrays, all of whose shards are in this process. Each shard is a separate chunk.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_empty)
    leaves = {tuple(entry.key for entry in path): leaf for path, leaf in paths}
    began = time.time_ns()
    item = directory / name
    if is_local(directory):
        item.mkdir(parents=True)
    _write_arrays(item, {".".join(path): leaf for path, leaf in leaves.items() if not _is_empty(leaf)})
    metadata = {str(path): _described(path, leaf) for path, leaf in leaves.items()}
    options = {"use_ocdbt": True, "use_zarr3": False, "store_array_data_equal_to_fill_value": True}
    (item / "_METADATA").write_text(json.dumps({"tree_metadata": metadata, **options, "custom_metadata": None}))
    times = {"init_timestamp_nsecs": began, "commit_timestamp_nsecs": time.time_ns()}
    (directory / "_CHECKPOINT_METADATA").write_text(json.dumps({"item_handlers": {name: HANDLER}, **times}))
    for committed in () if is_local(directory) else (item, directory):
        (committed / COMMITTED).write_text(f"{committed} is complete")


def _write_arrays(directory: Any, arrays: Mapping[str, Any]) -> None:
    import tensorstore

    # One thread of each kind: more would cost small arrays more than they save large ones. There is no other writer,
    # and the manifest flushes all files at once.
    limits = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}
    alone = {"file_io_sync": False, "file_io_locking": {"mode": "none"}}
    context = tensorstore.Context({**alone, **limits, "gcs_request_retries": RETRIES})
    # Only an atomic transaction is one commit: otherwise each batch of writes that is ready makes separate files.
    transaction = tensorstore.Transaction(atomic=True)
    files = _files_in(directory)
    database = {"driver": "ocdbt", "base": files, "target_data_file_size": FILE_BYTES}
    shards, opening = [_shards(x) for x in arrays.values()], []
    # All are opened before the first is awaited: with these limits, that halved the CPU time of 162 small arrays.
    for (name, x), parts in zip(arrays.items(), shards, strict=True):
        layout = {"shape": x.shape, "chunks": parts[0][1].shape, "compressor": None}
        spec = {"driver": "zarr", "kvstore": {**database, "path": name}, "dtype": x.dtype.name, "metadata": layout}
        spec["store_data_equal_to_fill_value"] = True  # Orbax treats a missing chunk as a damaged file
        opening.append(tensorstore.open(spec, create=True, context=context, transaction=transaction))
    writes = [
        array.result()[index].write(np.asarray(data), can_reference_source_data_indefinitely=True)
        for array, parts in zip(opening, shards, strict=True)
        for index, data in parts
    ]
    for write in writes:
        write.copy.result()
    commit = transaction.commit_async()
    try:
        commit.result()
    except BaseException:
        with contextlib.suppress(Exception):
            commit.exception()  # after an interrupt it still runs
        # Queued writes would recreate the directory after its removal. One thread does all of them, so this read comes
        # after them. In an object store they leave files that no manifest names.
        if is_local(directory):
            tensorstore.KvStore.open(files, context=context).result().read("nothing").result()
        raise


def _files_in(directory: Any) -> dict[str, str]:
    if is_local(directory):
        return {"driver": "file", "path": f"{directory}/"}
    # In an address TensorStore would decode `%20` as a space, and write elsewhere than Orbax and gcsfs read.
    bucket, _, path = str(directory).partition("://")[2].partition("/")
    return {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}


def _shards(x: Any) -> list[tuple[Any, Any]]:
    """Return the shards of an array with their indices, and start to copy them to the host."""
    if not isinstance(x, jax.Array):
        return [(..., x)]
    shards = [(shard.index, shard.data) for shard in x.addressable_shards if shard.replica_id == 0]
    for _, data in shards:
        data.copy_to_host_async()
    return shards


def _is_empty(x: Any) -> bool:
    return isinstance(x, dict) and not x


def _described(path: tuple[str, ...], leaf: Any) -> dict[str, Any]:
    empty = _is_empty(leaf)
    value = {"value_type": "Dict" if empty else "np.ndarray", "skip_deserialize": empty}
    return {"key_metadata": [{"key": key, "key_type": DICT_KEY} for key in path], "value_metadata": value}
