"""The state of a user's data as JSON, for checkpoints: loading it runs no code.

JSON values stay unchanged. Every other value becomes a dict with one key, which names its kind:

    {"base64": "AQI="}                                       bytes
    {"array": {"dtype": "<i4", "shape": [2], "base64": ...}} a NumPy array; {"scalar": ...} one of NumPy's scalars
    {"tensor": {"dtype": "uint8", "shape": [2], "base64": ...}}  a tensor of PyTorch in the host's memory
    {"tuple": [1, 2]}                                        a tuple
    {"float": "nan"}                                         a number that is not finite
    {"items": [[0, "a"]]}                                    a dict with keys other than texts, or like one of these
"""

import base64
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from learner.data.hugging_face import flaw_of, is_stream
from learner.errors import LearnerError

TAGS = ("base64", "array", "scalar", "tensor", "tuple", "float", "items")
DATASETS = "datasets"  # the key of the states of datasets, each with the name of its class


def to_json(x: Any, split: str, where: str = "") -> Any:
    """Return JSON that `from_json` converts back into the state, with the same types and bits.

    Args:
      x: the state: nested dicts, lists, tuples, numbers, texts, bytes, NumPy arrays of numbers, PyTorch's
        tensors in the host's memory, and `None`.
      split: the name of the split, for the message.
      where: the place of a part of a state, for the message.

    Raises:
      LearnerError: the state contains another kind of value.

    >>> to_json({"next": 3, "seen": (1, 2), "key": b"ab"}, "train")
    {'next': 3, 'seen': {'tuple': [1, 2]}, 'key': {'base64': 'YWI='}}
    """
    kind = type(x)
    if x is None or kind in (bool, int, str):
        return x
    if kind is float:
        return x if math.isfinite(x) else {"float": str(x)}
    if isinstance(x, dict):
        return _encoded_dict(x, split, where)
    if kind in (list, tuple):
        items = [to_json(item, split, f"{where}[{i}]") for i, item in enumerate(x)]
        return items if kind is list else {"tuple": items}
    if kind in (bytes, bytearray):
        return {"base64": _text(x)}
    if (kind is np.ndarray or isinstance(x, np.generic)) and x.dtype.kind in "biufc":
        array = {"dtype": x.dtype.str, "shape": list(x.shape), "base64": _text(x.tobytes())}
        return {"array" if kind is np.ndarray else "scalar": array}
    if _is_tensor(x):
        dtype, data = str(x.dtype).removeprefix("torch."), _bytes_of(x.detach().contiguous())
        return {"tensor": {"dtype": dtype, "shape": list(x.shape), "base64": _text(data.tobytes())}}
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    of = f" of {x.dtype}" if kind is np.ndarray else ""
    raise LearnerError(
        f"the state of the {split} data cannot be stored in a checkpoint: {where or 'it'} is a {name}{of}. It may "
        "hold dicts, lists, tuples, numbers, texts, bytes, NumPy arrays of numbers and PyTorch's tensors on the CPU; "
        "change what get_state (state_dict) returns, or train without checkpoints: with_file_checkpointer(None)",
        code="data-state-not-storable",
        split=split,
        name=name,
    )


def _encoded_dict(x: dict[Any, Any], split: str, where: str) -> dict[str, Any]:
    if all(type(key) is str for key in x) and not (len(x) == 1 and next(iter(x)) in TAGS):
        return {key: to_json(item, split, f"{where}.{key}" if where else key) for key, item in x.items()}
    return {
        "items": [
            [to_json(key, split, f"a key of {where or 'it'}"), to_json(item, split, f"{where}[{key!r}]")]
            for key, item in x.items()
        ]
    }


def from_json(stored: Any) -> Any:
    """Return the state that `to_json` received.

    >>> from_json({"next": 3, "seen": {"tuple": [1, 2]}, "key": {"base64": "YWI="}})
    {'next': 3, 'seen': (1, 2), 'key': b'ab'}
    """
    if isinstance(stored, list):
        return [from_json(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    tag, x = next(iter(stored.items())) if len(stored) == 1 else ("", None)
    if tag not in TAGS:
        return {key: from_json(item) for key, item in stored.items()}
    return _DECODED[tag](x)


def state_methods(holder: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return the methods of data that get and set its state, by Grain's names or torchdata's, or None."""
    if is_stream(holder) and flaw_of(holder):
        return None
    for names in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        get, put = (getattr(holder, name, None) for name in names)
        if callable(get) and callable(put):
            return get, put
    return None


def is_of_datasets(state: Any) -> bool:
    """Return True for the states of datasets behind a loader, rather than of an iterable."""
    return isinstance(state, dict) and set(state) == {DATASETS}


def put_back(holder: Any, state: Any, split: str, epoch: int, start: int) -> None:
    """Put data back into the state that it had before a batch of an epoch; before batch 0, at the end of that epoch.

    Raises:
      LearnerError: the data does not accept it.
    """
    pair = state_methods(holder)
    assert pair is not None
    try:
        pair[1](from_json(state))
    except Exception as error:
        place = f"after batch {start} of epoch {epoch}" if start else f"at the end of epoch {epoch}"
        raise LearnerError(
            f"the {split} data ({type(holder).__name__}) does not take back the state that it had {place}: {error!r}. "
            "Pass the data that the run was trained on, or resume from the end of an epoch: checkpoint(epoch)",
            code="resume-data-state-refused",
        ) from error


def _is_tensor(x: Any) -> bool:
    """Return True for a dense tensor of PyTorch in the host's memory."""
    torch = sys.modules.get("torch")  # imported if there is a tensor
    return torch is not None and type(x) is torch.Tensor and (x.device.type, x.layout) == ("cpu", torch.strided)


def _bytes_of(tensor: Any) -> np.ndarray:
    """Return the memory of a contiguous tensor, also of dtypes that NumPy lacks, such as bfloat16."""
    return np.asarray(tensor.reshape(-1).view(sys.modules["torch"].uint8))


def _tensor(x: dict[str, Any]) -> Any:
    import torch  # type: ignore[import-not-found, unused-ignore]

    tensor = torch.empty(x["shape"], dtype=getattr(torch, x["dtype"]))
    _bytes_of(tensor)[:] = np.frombuffer(base64.b64decode(x["base64"]), np.uint8)
    return tensor


def _array(x: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(x["base64"]), np.dtype(x["dtype"])).reshape(x["shape"]).copy()


def _text(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


_DECODED: dict[str, Callable[[Any], Any]] = {
    "base64": base64.b64decode,
    "array": _array,
    "tensor": _tensor,
    "scalar": lambda x: _array(x)[()],
    "tuple": lambda x: tuple(from_json(x)),
    "float": float,
    "items": lambda x: {from_json(key): from_json(item) for key, item in x},
}
