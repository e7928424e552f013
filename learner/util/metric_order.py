"""The selection and order of metrics in all views."""

from collections.abc import Collection, Iterable


def ordered(keys: Iterable[str], monitor: str | None = None) -> list[str]:
    """Return keys of metrics in the order of all views: the monitor, validation metrics, training metrics. The loss is
    the first of each split.

    >>> keys = ["train/Accuracy", "train/Loss", "valid/Accuracy", "valid/Loss"]
    >>> ordered(keys, "valid/Accuracy")
    ['valid/Accuracy', 'valid/Loss', 'train/Loss', 'train/Accuracy']
    """
    keys = list(keys)
    splits = list(dict.fromkeys(key.partition("/")[0] for key in keys))

    def rank(key: str) -> tuple[bool, bool, int, bool]:
        split, _, name = key.partition("/")
        return key != monitor, split == "train", splits.index(split), name != "Loss"

    return sorted(keys, key=rank)


def by_importance(keys: Iterable[str], monitor: str | None = None) -> list[str]:
    """Return keys of metrics by priority for a small view: the monitor, the losses, the rest.

    >>> by_importance(["train/Accuracy", "train/Loss", "valid/Accuracy", "valid/Loss"])
    ['valid/Loss', 'train/Loss', 'valid/Accuracy', 'train/Accuracy']
    """
    return sorted(ordered(keys, monitor), key=lambda key: (key != monitor, not key.endswith("/Loss")))


def is_selected(key: str, metrics: Collection[str]) -> bool:
    """Return True if a metric is one of `metrics`, which are keys or names; an empty selection contains all.

    >>> [is_selected("valid/Loss", metrics) for metrics in ((), ["Loss"], ["valid/Loss"], ["train/Loss"])]
    [True, True, True, False]
    """
    return not metrics or key in metrics or key.partition("/")[2] in metrics
