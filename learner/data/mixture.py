"""Mixtures: one dataset whose rows are drawn from several, with given probabilities, anew in each epoch."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from learner.data.array_dataset import ArrayConcat, ArrayDataset
from learner.data.dataset import Dataset, View, chain_text, inner_of, read_item
from learner.data.label_names import label_conflicts
from learner.data.mixture_checks import (
    check_fields,
    check_source_field,
    check_sources,
    check_weights,
    first_items,
    fractions_of,
)
from learner.data.mixture_draws import EpochRows, MixtureDraws
from learner.data.stream_mixture import BLOCK, EXHAUSTED, StreamMixture
from learner.errors import LearnerError, Problem, one_error
from learner.util.number_checks import check_int

__all__ = ["mix", "stream"]


def mix(
    sources: Mapping[str, Any] | Sequence[Any],
    weights: Mapping[str, float] | Sequence[float] | None = None,
    size: int | None = None,
    seed: int = 0,
    source_field: str | None = None,
    exhausted: Literal["stop", "repeat", "drop"] | None = None,
) -> "Mixture | StreamMixture":
    """Return a dataset that draws each row from one of several sources, or a stream if one of them is a stream.

    The rows of an epoch are a function of (seed, epoch). Each source has its share of them, rounded up or down, at
    random positions. A source is read in a shuffled order that continues from epoch to epoch, and in a new order each
    time it is exhausted; each pass is an epoch of the source, for its `augment`. With the default weights and size,
    each epoch has every row once.

    Args:
      sources: datasets, or anything else that `view` accepts, by name; the items of a list are named "0", "1", ....
        The lengths of the first axes may differ between sources that are not in memory, for batchers that pad.
      weights: relative probabilities of the sources, by name or in their order; they need not add up to 1. Default: the
        lengths of the sources.
      size: rows per epoch; default: the sum of the lengths of the sources. With streams, an epoch of that size begins
        where the last one ended; by default each epoch reads the sources from their start.
      seed: the seed of the draws.
      source_field: a field to add to the items, which must be dicts: the number of the source, int32 `[]`.
      exhausted: for streams (iterables of items, or functions that return one): at the end of a source, "stop" ends the
        epoch (the default), "repeat" restarts the source, and "drop" continues with the other sources.

    Raises:
      LearnerError: there are no sources, or a source is an iterator, which can be read only once; sources differ in
        fields, shapes, dtypes or the numbers of label texts; the weights do not fit; the size is below 1. One error
        lists all problems.

    >>> code, web = {"x": np.array([1, 2])}, {"x": np.array([10, 20, 30, 40, 50, 60])}
    >>> mixture = mix({"code": code, "web": web}, weights={"code": 0.5, "web": 0.5}, seed=0)
    >>> mixture.counts(1)
    {'code': 4, 'web': 4}
    >>> [item["x"].item() for item in mixture]
    [1, 10, 2, 50, 2, 40, 1, 60]
    """
    problems: list[str] = []
    names, datasets = check_sources(sources, problems)
    problems += label_conflicts({f"source {name!r}": dataset for name, dataset in datasets.items()})
    if names and weights is not None:
        problems += check_weights(weights, names)
    for name, value, least in (("size", 1 if size is None else size, 1), ("seed", seed, 0)):
        try:
            check_int(f"the {name} of a mixture", value, least)
        except LearnerError as error:
            problems.append(Problem(str(error), code=error.code, **error.fields))
    streams = not all(isinstance(source, Dataset) for source in datasets.values())
    if exhausted not in (None, *EXHAUSTED) or (exhausted is not None and not streams and not problems):
        problems.append(
            Problem(
                f"exhausted is {exhausted!r}: it needs 'stop', 'repeat' or 'drop', and streams among the sources",
                code="data-mixture-exhausted",
                exhausted=exhausted,
            )
        )
    if streams:
        if problems:
            raise one_error(problems, "this cannot be mixed", code="data-mixture-unusable")
        given = [Fraction(1)] * len(names) if weights is None else fractions_of(weights, names)
        draws = MixtureDraws([1] * len(names), given, BLOCK, int(seed))
        return StreamMixture(datasets, draws, size=size, exhausted=exhausted or "stop", source_field=source_field)
    items = first_items(datasets)
    problems += check_fields(datasets, items)
    if source_field is not None:
        problems += check_source_field(source_field, items)
    if problems:
        raise one_error(problems, "this cannot be mixed", code="data-mixture-unusable")
    lengths = [len(dataset) for dataset in datasets.values()]
    given = list(map(Fraction, lengths)) if weights is None else fractions_of(weights, names)
    draws = MixtureDraws(lengths, given, int(size or sum(lengths)), int(seed))
    return Mixture(datasets, draws, weights is None, source_field)


def stream(items: Any, size: int | None = None, batched: bool = False) -> StreamMixture:
    """Return data of unknown length, which is read in order: a mixture of one stream.

    Pass it to `fit` with `with_batch_size(32)`, or as `stream(items).batch(32)`, which also accepts a `batcher`. It
    resumes exactly, to the bit: from the state of the items, if they have one, or by reading the epoch's items again
    up to the position.

    Args:
      items: an iterable of items that can be read again, or a function that returns one, such as a generator function.
      size: items per epoch, for many items or items without an end: each epoch begins where the last one ended. An
        epoch that reaches the end of the items ends there, and the next one begins at their start. By default each
        epoch reads the items from their start.
      batched: the items are whole batches, which need no batch size.

    Raises:
      LearnerError: the items are an iterator, which can be read only once, or data with a length and an index, which
        needs a loader, or none if it is a list of batches; the size is below 1.

    >>> def rows():
    ...     for number in range(3):
    ...         yield {"x": np.float32(number)}
    >>> [batch["x"].tolist() for batch in stream(rows).batch(2)]
    [[0.0, 1.0], [2.0]]
    """
    mixture = mix({"items": items}, size=size)
    if not isinstance(mixture, StreamMixture):
        raise LearnerError(
            f"stream got a {type(items).__name__}, which has a length and an index: pass "
            "DataLoaderBuilder().batch_size(32).build(items), which also shuffles; if its items are batches, pass them "
            "to fit as they are, or stream(lambda: iter(items), size=..., batched=True)",
            code="data-stream-indexed",
        )
    return mixture.batch(1, batcher=_only) if batched else mixture


def _only(items: Sequence[Any]) -> Any:
    """Return the only item, which is a batch."""
    return items[0]


class Mixture(View):
    """A dataset whose rows are drawn from several sources, made by `mix`. Outside loaders, the epoch is 1.

    Views that need the same rows in all epochs raise `LearnerError`: `filter`, `split`, `part`, `k_fold` and `fold`.
    Call them on the sources instead. A loader without a batcher gathers each batch of arrays in memory in one
    operation.

    Attributes:
      names: the names of the sources.
      source_field: the field of an item with the number of its source, or None.

    >>> mixture = mix([["a", "b"], ["c"]], size=4)
    >>> mixture
    mix(size=4, seed=0, {'0': list(2 items), '1': list(1 items)}): 4 items; an epoch repeats '0' 1.33x, '1' 1.33x
    >>> list(mixture.slice(1, 3))
    ['b', 'c']
    """

    random = True
    _redraws = True

    def __init__(
        self, sources: Mapping[str, Dataset], draws: MixtureDraws, by_size: bool, source_field: str | None
    ) -> None:
        self.names, self.source_field = tuple(sources), source_field
        field = "" if source_field is None else f", source_field={source_field!r}"
        listed = ", ".join(f"{name!r}: {chain_text(source)}" for name, source in sources.items())
        shares = ", ".join(f"{float(probability):.9g}" for probability in draws.probabilities)
        weights = "" if by_size else f", weights=[{shares}]"
        # The sources come last, because descriptions in fingerprints are cut.
        text = f"mix(size={draws.size}, seed={draws.seed}{weights}{field}, {{{listed}}})"
        super().__init__(list(sources.values()), text)
        self._draws = draws
        self._latest: EpochRows | None = None

    def counts(self, epoch: int = 1) -> dict[str, int]:
        """Return the rows of each source in an epoch (from 1), by name. No source is read.

        >>> mix([range(30), range(70)], weights=[1, 2]).counts(epoch=7)
        {'0': 34, '1': 66}
        """
        counts = self._draws.counts(check_int("epoch", epoch, least=1))
        return dict(zip(self.names, counts.tolist(), strict=True))

    def describe(self, epoch: int = 1) -> str:
        """Return one line about the rows of an epoch (from 1): the rows of each source, and how often it is repeated.

        >>> mix({"a": range(2), "b": range(8)}, weights=[1, 1], size=8).describe()
        '8 rows: a 4 (50.00 %; 2.00 times its 2 rows), b 4 (50.00 %; 0.50 times its 8 rows)'
        """
        shares = zip(self.counts(epoch).items(), self._draws.probabilities, self._draws.lengths, strict=True)
        parts = [
            f"{name} {count:,} ({float(100 * share):.2f} %; {count / length:.2f} times its {length:,} rows)"
            for (name, count), share, length in shares
        ]
        return f"{len(self):,} rows: {', '.join(parts)}"

    @property
    def pool(self) -> "MixturePool | None":
        """Return the rows of all sources if they are arrays in memory, otherwise None."""
        parts = [source for source in self._viewed if isinstance(source, ArrayDataset)]
        return MixturePool(parts, self.source_field) if len(parts) == len(self._viewed) else None

    def pool_rows(self, epoch: int) -> np.ndarray:
        """Return the rows of an epoch (from 1) as row numbers of the pool, int `[size]`."""
        rows = self._rows_of(epoch)
        starts = np.cumsum([0, *self._draws.lengths[:-1]])
        numbers: np.ndarray = starts[rows.source] + rows.row
        return numbers

    def __len__(self) -> int:
        return self._draws.size

    def __repr__(self) -> str:
        rows = [float(len(self) * share) for share in self._draws.probabilities]
        times = {name: n / length for name, n, length in zip(self.names, rows, self._draws.lengths, strict=True)}
        repeated = ", ".join(f"{name!r} {number:.3g}x" for name, number in times.items() if number > 1)
        return super().__repr__() + (f"; an epoch repeats {repeated}" if repeated else "")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}

    def _view_text(self) -> str:
        return self._call

    def _item(self, number: int, epoch: int) -> Any:
        rows = self._rows_of(epoch)
        which, row = int(rows.source[number]), int(rows.row[number])
        try:
            item = read_item(self._viewed[which], row, int(rows.walk[number]))
        except Exception as error:
            error.add_note(f"while reading item {row} of the source {self.names[which]!r} of a mixture")
            raise
        return item if self.source_field is None else {**item, self.source_field: np.int32(which)}

    def _rows_of(self, epoch: int) -> EpochRows:
        # Threads read concurrently: each uses the rows that it got here, whichever are cached.
        latest = self._latest
        if latest is None or latest.epoch != epoch:
            self._latest = latest = self._draws.rows(epoch)
        return latest


class MixturePool:
    """The rows of arrays in memory, one source after another.

    Args:
      parts: the sources.
      source_field: a field to add: the number of the source, int32 `[rows]`.

    >>> pool = MixturePool([ArrayDataset({"x": np.array([5, 6])}), ArrayDataset({"x": np.array([7])})], "source")
    >>> pool.take(np.array([2, 0]))
    {'x': array([7, 5]), 'source': array([1, 0], dtype=int32)}
    """

    def __init__(self, parts: Sequence[ArrayDataset], source_field: str | None = None) -> None:
        self._rows = ArrayConcat(parts)
        self._ends, self._field = np.cumsum([len(part) for part in parts]), source_field

    @property
    def arrays(self) -> Any:
        """Return copies of the arrays `[rows, ...]`."""
        return self._with_field(self._rows.arrays, np.arange(len(self._rows)))

    @property
    def nbytes(self) -> int:
        """Return the size of `arrays`."""
        return self._rows.nbytes + 4 * len(self._rows) * (self._field is not None)

    def take(self, rows: np.ndarray) -> Any:
        """Return a batch: copies of the rows with these numbers (0 or more), int `[batch]`."""
        return self._with_field(self._rows.take(rows), rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _with_field(self, batch: Any, rows: np.ndarray) -> Any:
        if self._field is None:
            return batch
        return {**batch, self._field: np.searchsorted(self._ends, rows, side="right").astype(np.int32)}


def mixtures_in(data: Any) -> list[Mixture]:
    """Return the mixtures in a dataset and in the views below it, but not the mixtures inside mixtures.

    >>> mixtures_in(mix([range(3), range(4)]).map(str))
    [mix(size=7, seed=0, {'0': range(3 items), '1': range(4 items)}): 7 items]
    """
    return [data] if isinstance(data, Mixture) else [each for inner in inner_of(data) for each in mixtures_in(inner)]
