from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import pytest

from learner.optimizers.generated import camel_case, make_class, yaml_type


class Ours:
    pass


@pytest.mark.parametrize(
    ("annotation", "kept"),
    [
        (bool, bool),
        (int, int),
        (str, str),
        (Literal["a", "b"], Literal["a", "b"]),
        (jax.typing.ArrayLike, float),
        (float | jax.Array | Callable[[int], float], float),
        (jax.typing.ArrayLike | None, float | None),
        (tuple[float, jax.typing.ArrayLike], tuple[float, float]),
        (tuple[jax.typing.ArrayLike, ...], tuple[float, ...]),
        (Mapping[str, int], dict[str, int]),
        (Iterable[dict[str, float]], list[dict[str, float]]),
        (Sequence[Ours], list[Ours]),
        (Ours, Ours),
        (Callable[[int], float], None),
        (Any, None),
        (Any | Callable[[int], float] | None, None),
        (float | Iterable["Tree"] | Mapping[Any, "Tree"], None),  # noqa: F821
        (jax.Array, None),
        (None, None),
    ],
)
def test_types_that_yaml_can_represent(annotation, kept):
    assert yaml_type(annotation, {Ours: Ours}) == kept


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adamw", "AdamW"),
        ("sgd", "SGD"),
        ("sign_sgd", "SignSGD"),
        ("warmup_constant_schedule", "WarmupConstantSchedule"),
    ],
)
def test_names(name, expected):
    assert camel_case(name) == expected


def function(free: float, size: int, rate: jax.typing.ArrayLike = 1, mask: Any = None, dtype: Any = None):
    """Does a thing.

    More about it.

    Args:
      free: what the caller gives.
      size: how large.
    """
    return free, size, rate, mask, dtype


def test_generated_class_has_the_parameters_that_yaml_can_represent():
    cls = make_class(function, "package.do_thing", Ours, {"free"}, {}, [("more", bool, False, "More of it.")])
    thing = cls(size=3)
    assert issubclass(cls, Ours)
    assert cls.__name__ == "DoThing"
    assert repr(thing) == "DoThing(size=3, rate=1, dtype=None, more=False)"
    assert thing == cls(size=3, rate=1)
    assert thing.function(0.5, 3) == (0.5, 3, 1, None, None)
    assert cls.__annotations__ == {"size": int, "rate": int | float, "dtype": str | None, "more": bool}
    assert cls.__doc__.startswith("Does a thing.\n\nThis is `package.do_thing`.\nA config cannot give mask")
    assert "size: how large." in cls.__doc__
    assert "more: More of it." in cls.__doc__
    with pytest.raises(TypeError, match="size"):
        cls()
    with pytest.raises(AttributeError):
        thing.size = 4
