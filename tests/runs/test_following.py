"""Tests of step values of runs that are still training, in bounded memory."""

import os

import numpy as np
import pytest

from learner.runs.following import GrowingSeries
from learner.runs.series import epochs_in, step_values
from tests.support.written import write_steps


def read_all(series, epochs, ends, limit=1 << 16):
    """Read to the end of the files."""
    while series.read(epochs, ends, limit) == limit:
        pass
    return series.series()


def test_growing_files_are_read_incrementally(tmp_path):
    """The values equal those of one read at the end, and no line is read twice."""
    series = GrowingSeries(tmp_path, "train", "Loss")
    assert len(read_all(series, [], {})) == 0
    write_steps(tmp_path, "Loss", 1, [1, 2, 3])
    assert read_all(series, [1], {}).mean.tolist() == [1, 2, 3]
    place = tmp_path / "train" / "epoch-2"
    place.mkdir()
    (place / "Loss.log").write_text("4,32\n5,3")
    assert read_all(series, [1, 2], {1: 3}).mean.tolist() == [1, 2, 3, 4]
    with (place / "Loss.log").open("a") as file:
        file.write("2\n0.1,final\n")
    write_steps(tmp_path, "Loss", 3, [6])
    values = read_all(series, [1, 2, 3], {1: 3})
    expected = step_values(tmp_path, "train", "Loss", {})
    assert values.step.tolist() == expected.step.tolist() == [*range(1, 7)]
    assert values.mean.tolist() == expected.mean.tolist() == [*range(1, 7)]
    assert series.last_step == 6


@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_limit_does_not_change_the_values(tmp_path, limit):
    write_steps(tmp_path, "Loss", 1, range(40))
    assert read_all(GrowingSeries(tmp_path, "train", "Loss"), [1], {}, limit).mean.tolist() == [*range(40)]


def test_late_metric_starts_after_the_epochs_without_it(tmp_path):
    write_steps(tmp_path, "Late", 3, [7, 8])
    assert read_all(GrowingSeries(tmp_path, "train", "Late"), [1, 2, 3], {1: 10, 2: 20}).step.tolist() == [21, 22]


def test_a_metric_that_is_new_inside_an_epoch_ends_with_it(tmp_path):
    write_steps(tmp_path, "Late", 2, [7, 8])
    ends = {1: 10, 2: 20}
    assert read_all(GrowingSeries(tmp_path, "train", "Late"), [1, 2], ends).step.tolist() == [19, 20]
    assert step_values(tmp_path, "train", "Late", ends).step.tolist() == [19, 20]


def test_truncated_file_is_an_error(tmp_path):
    write_steps(tmp_path, "Loss", 1, range(10))
    series = GrowingSeries(tmp_path, "train", "Loss")
    read_all(series, [1], {})
    os.truncate(tmp_path / "train" / "epoch-1" / "Loss.log", 8)
    with pytest.raises(ValueError, match="became shorter"):
        series.read([1], {}, 100)


def test_sketch_with_an_epoch_of_one_step(tmp_path):
    """In the last epoch, a sampled position may contain only the value of the whole epoch."""
    for epoch, count in ((1, 300_000), (2, 1)):
        place = tmp_path / "train" / f"epoch-{epoch}"
        place.mkdir(parents=True)
        (place / "Loss.log").write_text("0.5,32\n" * count + "0.25,final\n")
    series = GrowingSeries(tmp_path, "train", "Loss")
    series.sketch([1, 2], {1: 300_000})
    assert series.is_sketched
    assert set(series.series().mean) == {0.5}


def test_sketch_is_replaced_by_exact_values(tmp_path):
    """A sketch approximates the series from a small part of the file; later reads replace it."""
    place = tmp_path / "train" / "epoch-1"
    place.mkdir(parents=True)
    count = 300_000
    (place / "Loss.log").write_text("".join(f"{i / count:.6f},32\n" for i in range(count)))
    series = GrowingSeries(tmp_path, "train", "Loss")
    series.sketch([1], {1: count})
    assert series.is_sketched
    sketched = series.series()
    assert len(sketched) == 256
    assert np.abs(sketched.mean - sketched.step / count).max() < 0.01
    assert sketched.step[-1] > 0.99 * count
    series.read([1], {}, 1 << 20)
    half = series.series()
    assert series.is_sketched
    assert np.all(np.diff(half.step) > 0)
    assert half.step[-1] == sketched.step[-1]
    exact = read_all(series, [1], {}, 1 << 20)
    assert not series.is_sketched
    middle = exact.step - (exact.together + 1) / 2
    np.testing.assert_allclose(exact.mean[:-1] * count, middle[:-1], atol=1)  # the last point has fewer steps
    assert exact.step[-1] == count


@pytest.mark.full
def test_sketch_of_many_epochs(tmp_path):
    for epoch in (1, 2, 3, 4):
        write_steps(tmp_path, "Loss", epoch, np.full(150_000, float(epoch)))
    series = GrowingSeries(tmp_path, "train", "Loss")
    series.sketch([1, 2, 3, 4], {})
    values = series.series()
    assert len(values) > 200
    assert (np.abs(values.mean - values.step / 150_000 - 0.5) < 0.51).all()


def test_epochs_are_sorted_by_number(tmp_path):
    for name in ("epoch-10", "epoch-9", "epoch-x", "other"):
        (tmp_path / name).mkdir()
    assert epochs_in(tmp_path) == [9, 10]
    assert epochs_in(tmp_path / "nowhere") == []


def test_name_that_leads_elsewhere_has_no_values(tmp_path):
    (tmp_path / "Loss.log").write_text("1,2\n")
    assert len(read_all(GrowingSeries(tmp_path / "a", "..", "../Loss"), [1], {})) == 0
