"""Formatting of values and texts for terminals."""

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

LONGEST = 40
GAP = 2
"""Characters between the columns of a table."""
SHORT_NAME, WIDE_NAME = 8, 24
"""The fewest characters of a row's name, and the most for which columns are omitted."""
NO_BREAK = "\N{NO-BREAK SPACE}"
QUANTITY = re.compile(r"(?<=\d) (?=(?:%|[a-zA-Z]{1,2}\b))")
"""The space between a number and a unit, such as `%`, `ms` or `kB`."""


def short(value: float | str) -> str:
    """Return a short form of a value: four significant digits, or one line of text without control characters.

    >>> [short(value) for value in (0.123456, 1.0, 16824.3, 2.5e-7, float("nan"), "a\\nb")]
    ['0.1235', '1', '16824', '2.5e-07', 'nan', 'a b']
    """
    if isinstance(value, str):
        return truncate(printable(" ".join(value.split())), LONGEST, "...")
    if math.isfinite(value) and 1000 <= abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a duration in readable units.

    >>> [duration(seconds) for seconds in (0.0031, 1.24, 200, 7500, 200000)]
    ['3 ms', '1.2 s', '3 min 20 s', '2 h 05 min', '2 d 07 h']
    """
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    if rounded < 48 * 3600:
        return f"{rounded // 3600} h {rounded // 60 % 60:02} min"
    return f"{rounded // 86400} d {rounded // 3600 % 24:02} h"


def count(number: int, what: str) -> str:
    """Return a number with its noun, in the plural if needed.

    >>> count(1, "epoch"), count(10378, "parameter"), count(2, "batch")
    ('1 epoch', '10,378 parameters', '2 batches')
    """
    plural = f"{what}es" if what.endswith("batch") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def size(count: float) -> str:
    """Return a number of bytes in readable units.

    >>> size(999), size(2_500_000), size(4_398_046_511_104)
    ('999 bytes', '2.5 MB', '4.4 TB')
    """
    if count < 1000:
        return f"{int(count)} byte{'' if count == 1 else 's'}"
    units = ["kB", "MB", "GB", "TB", "PB"]
    while (count := count / 1000) >= 999.95 and len(units) > 1:
        units.pop(0)
    return f"{count:.1f} {units[0]}"


def printable(text: str) -> str:
    """Return the text with a question mark in place of each control character, so that it cannot control a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def truncate(text: str, width: int, mark: str = ".") -> str:
    """Return the text, truncated to a width with a mark at its end if it is longer.

    >>> truncate("Precision", 9), truncate("Precision", 5)
    ('Precision', 'Prec.')
    """
    return text if len(text) <= width else text[: max(0, width - len(mark))] + mark


def abbreviate(text: str, width: int) -> str:
    """Return the text; if it is longer than a width, its beginning and end with an ellipsis between them.

    >>> abbreviate("Precision", 9), abbreviate("Accuracy ignoring -100", 16)
    ('Precision', 'Accuracy…ng -100')
    """
    if len(text) <= width:
        return text
    end = max(0, width - 1) // 2
    return truncate(text, width - end, "…") + text[len(text) - end :]


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, broken between words, but not between a number and its unit. All lines but the first
    are indented. A word longer than the width has its own line.

    >>> wrapped("compiled in 1.5 s; runs/a", 13)
    ['compiled in', '  1.5 s;', '  runs/a']
    """
    if len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    joined = QUANTITY.sub(NO_BREAK, text)  # textwrap does not break at it
    lines = textwrap.wrap(joined, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return the text with `***` in place of each secret, also where it is quoted as in Python or JSON.

    >>> masked("GET /T0/a1b2 failed: {'key': 'x'}", ["/T0/a1b2", "x"])
    "GET *** failed: {'key': '***'}"
    """
    for secret in sorted(set(secrets), key=len, reverse=True):  # a part of a longer secret would leave its rest
        if len(secret) < 4:  # a part of many words
            text = text.replace(repr(secret), "'***'") if secret else text
            continue
        for form in {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]}:
            text = text.replace(form, "***")
    return text


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of texts as lines of aligned columns: the first left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def fitted_rows(
    names: Sequence[str],
    columns: Mapping[str, Sequence[str]],
    width: int | None,
    secondary: Sequence[str],
    shorten: Callable[[str, int], str],
) -> list[list[str]]:
    """Return the rows of a table that fits into a width. As many of the `secondary` columns as necessary are omitted,
    the first ones first, and then names are shortened, but not to less than 8 characters.

    Args:
      names: the first column.
      columns: the other columns.
      width: the width in characters; None for no limit.
      secondary: the keys of columns.
      shorten: `(text, length) -> text`.

    >>> columns = {"best": ["best", "0.25"], "epoch": ["epoch", "3"], "last": ["last", "0.5"]}
    >>> for width in (29, 28, 14):
    ...     print(fitted_rows(["metric", "valid/Loss"], columns, width, ("epoch", "best"), truncate))
    [['metric', 'best', 'epoch', 'last'], ['valid/Loss', '0.25', '3', '0.5']]
    [['metric', 'best', 'last'], ['valid/Loss', '0.25', '0.5']]
    [['metric', 'last'], ['valid/L.', '0.5']]
    """
    if width is not None:
        sizes = {name: GAP + max(map(len, column)) for name, column in columns.items()}
        least = min(WIDE_NAME, max(map(len, names)))
        for name in secondary:
            if sum(sizes.values()) + least > width:
                sizes.pop(name, None)
        room = max(SHORT_NAME, width - sum(sizes.values()))
        names = [shorten(name, room) for name in names]
        columns = {name: columns[name] for name in sizes}
    return list(map(list, zip(names, *columns.values(), strict=True)))


def join_names(names: Sequence[str], most: int) -> str:
    """Return the first names, and the number of the others.

    >>> join_names(["a", "b"], most=2), join_names(["a", "b", "c"], most=2)
    ('a, b', 'a, b and 1 more')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def first_and_last(names: Sequence[str], most: int = 4) -> str:
    """Return the names; of more than `2 * most`, the first and the last ones, and the number of the others.

    >>> first_and_last(["a", "b", "c", "d", "e"], most=2)
    'a, b, ..., d, e and 1 other'
    """
    if len(names) <= 2 * most:
        return ", ".join(names)
    return f"{', '.join([*names[:most], '...', *names[-most:]])} and {count(len(names) - 2 * most, 'other')}"


def first_line(error: BaseException) -> str:
    """Return the type and the first line of an error.

    >>> first_line(ValueError("x\\ny"))
    'ValueError: x'
    """
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def first_sentence(text: str) -> str:
    """Return the text up to the first period before a capital letter or a parenthesis.

    >>> first_sentence("the loss is 1.5e9. Try a lower rate. Or clip"), first_sentence("a.b is 0. (Or 1)")
    ('the loss is 1.5e9', 'a.b is 0')
    """
    return re.split(r"\.\s+(?=[A-Z(])", text, maxsplit=1)[0]


def utf8_safe(text: str) -> str:
    """Return the text with question marks for characters that UTF-8 cannot encode, but JSON can.

    >>> utf8_safe("a \\ud800")
    'a ?'
    """
    return text.encode(errors="replace").decode()


def by_number(text: str) -> list[tuple[int, str]]:
    """Return a sort key that orders the numbers in texts by their values.

    >>> sorted(["run-10", "run-9", "a"], key=by_number)
    ['a', 'run-9', 'run-10']
    """
    words = [word.lstrip("0") if word.isdecimal() else word for word in re.split(r"(\d+)", text)]
    # Not with int, which refuses thousands of digits: of two numbers, the longer one is larger.
    return [(len(word), word) if index % 2 else (-1, word) for index, word in enumerate(words)]


def name_of(thing: Any) -> str:
    """Return the name of a function, partial or object for messages."""
    inner = getattr(thing, "func", thing)
    return getattr(inner, "__name__", None) or type(inner).__name__
