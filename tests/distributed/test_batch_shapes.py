"""Tests of the shapes of batches: runs, and the first batch in which processes differ."""

from learner.distributed.batch_shapes import KEPT, ShapeRuns, first_difference, shapes_at


def counts_of(*rows, first=1):
    counts = ShapeRuns()
    counts.add(first, rows)
    return counts


def test_batches_of_equal_rows_are_one_run_however_they_are_added():
    counts = counts_of(4, 4)
    counts.add(3, [4, 2])
    assert list(counts.runs) == list(counts_of(4, 4, 4, 2).runs) == [[1, 4], [4, 2]]
    assert counts.batches == 4


def test_rows_of_a_pass_that_was_resumed_begin_inside_of_it():
    runs = list(counts_of(4, 2, first=7).runs)
    assert [shapes_at(runs, batch) for batch in (6, 7, 8, 99)] == [None, 4, 2, 2]


def test_only_batches_that_all_have_read_are_compared():
    a, b, c = (list(counts.runs) for counts in (counts_of(6, 6, 3), counts_of(6, 6, 5), counts_of(6)))
    assert first_difference([a, b], until=2) is None
    assert first_difference([a, b], until=3) == (3, [3, 5])
    assert first_difference([c, c, a], until=3) == (3, [6, 6, 3])


def test_the_latest_runs_are_kept():
    a, b = counts_of(*range(1, KEPT + 51)), counts_of(*range(1, KEPT + 50), 7)
    assert len(a.runs) == KEPT
    assert first_difference([a.runs, b.runs], until=KEPT + 50) == (KEPT + 50, [KEPT + 50, 7])
