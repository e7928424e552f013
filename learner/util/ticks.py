"""Round numbers for the axes of plots."""

import math

import numpy as np


# plotext's own ticks divide an axis into equal parts: none is round, ticks of rates are like 0.00000056, and large
# numbers have up to 39 digits.
def ticks(low: float, high: float, most: int, log: bool = False) -> tuple[list[float], list[str]]:
    """Return round numbers for an axis, and their texts.

    Args:
      low: the minimum of the axis; greater than 0 if it is logarithmic.
      high: the maximum of the axis.
      most: the maximum number of ticks.
      log: True for a logarithmic axis. Its ticks are powers of ten, with 2 and 5 times them if there is room.

    >>> ticks(1, 500, most=5)
    ([100.0, 200.0, 300.0, 400.0, 500.0], ['100', '200', '300', '400', '500'])
    >>> [ticks(*limits, most=4)[1] for limits in ((0.11, 0.31), (0, 3e6), (0, 3e-4))]
    [['0.15', '0.2', '0.25', '0.3'], ['0', '1e6', '2e6', '3e6'], ['0', '1e-4', '2e-4', '3e-4']]
    >>> [ticks(*limits, most=3, log=True)[1] for limits in ((1e-7, 10), (0.01, 1), (0.15, 0.6))]
    [['1e-7', '1e-4', '0.1'], ['0.01', '0.1', '1'], ['0.2', '0.5']]
    """
    places = _powers(low, high, most) if log else []
    if len(places) > 1:
        return places, [_tick_text(place, place) for place in places]
    places = _multiples(low, high, most)
    return places, [_tick_text(place, max(map(abs, places))) for place in places]


def _powers(low: float, high: float, most: int) -> list[float]:
    places: list[float] = []
    for factors in ((1, 2, 5), (1,)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        numbers = [float(f"{factor}e{power}") for power in powers for factor in factors]
        places = [number for number in numbers if low * (1 - 1e-9) <= number <= high * (1 + 1e-9)]
        if len(places) <= most:
            break
    return places[:: max(1, math.ceil(len(places) / most))]


def _multiples(low: float, high: float, most: int) -> list[float]:
    if not (math.isfinite(high - low) and (high - low) / most > 0):
        return [low]
    power = math.floor(math.log10((high - low) / most))
    for size in (float(f"{factor}e{power}") for factor in (1, 2, 5, 10, 20)):
        first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
        if last - first < most:
            break
    return [float(f"{number * size:.12g}") for number in range(first, last + 1)]


def _tick_text(value: float, largest: float) -> str:
    if value == 0 or 1e-3 <= largest < 1e6:
        return f"{value:.12g}"
    return np.format_float_scientific(value, trim="-", exp_digits=1).replace("+", "")
