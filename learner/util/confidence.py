"""The confidence interval of a mean."""

CONFIDENCE = 0.95


def student_factor(count: int) -> float:
    """Return half the width of the 95 % interval of a mean over its standard error, from Student's t distribution.

    Args:
      count: the number of values, 2 or more.

    >>> round(student_factor(2), 3), round(student_factor(10), 3)
    (12.706, 2.262)
    """
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
