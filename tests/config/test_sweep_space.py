"""Tests of sweep spaces: lists, ranges, distributions and the resulting members."""

import random

import pytest

from learner.config.distributions import loguniform, randint, uniform
from learner.config.sweep_space import LONGEST_NAME, MOST, SweepSpace, values_of
from tests.support.codes import raises_code


def rows(space):
    return [tuple(member.values.values()) for member in space.members()]


def codes(space):
    return [problem.code for problem in space.problems()]


@pytest.mark.parametrize(
    ("items", "values"),
    [
        ([1e-4, 1e-3], [1e-4, 1e-3]),
        (["0..3"], [0, 1, 2, 3]),
        (["-1..1", 5], [-1, 0, 1, 5]),
        (["4..4"], [4]),
        (["AdamW", "SGD"], ["AdamW", "SGD"]),
        ([[64, 10], None, True], [[64, 10], None, True]),
        (["loguniform:1e-4:1e-1"], loguniform(1e-4, 1e-1)),
        (["uniform:-1:.5"], uniform(-1, 0.5)),
        (["randint:-2:2"], randint(-2, 2)),
        (["uniform"], ["uniform"]),
        (["host:1:2"], ["host:1:2"]),
        (["logunifrm:a:b"], ["logunifrm:a:b"]),
        (["1.5..2"], ["1.5..2"]),
    ],
)
def test_values_of_command_line_items(items, values):
    assert values_of("key", items) == values


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([], "sweep-values-empty"),
        (["7..0"], "sweep-range"),
        ([f"1..{MOST + 1}"], "sweep-range"),
        (["loguniform:0:1"], "population-range"),
        (["loguniform:-1:1"], "population-range"),
        (["uniform:1:1"], "population-range"),
        (["uniform:0:inf"], "population-range"),
        (["uniform:0"], "sweep-distribution"),
        (["uniform:a:b"], "sweep-distribution"),
        ([1, "uniform:0:1"], "sweep-distribution"),
        (["logunifrm:1e-4:1e-3"], "sweep-distribution"),
        (["randit:1:2"], "sweep-distribution"),
        (["randint:0.5:2"], "population-range"),
        (["randint:2:2"], "population-range"),
    ],
)
def test_malformed_values_are_refused(items, code):
    with raises_code(code, "model.width", key="model.width"):
        values_of("model.width", items)


def test_misspelled_distribution_is_named():
    with raises_code("sweep-distribution", "logunifrm:1e-4:1e-3", "did you mean 'loguniform'"):
        values_of("lr", ["logunifrm:1e-4:1e-3"])


def test_whole_numbers_are_drawn_once_as_long_as_there_are_others():
    drawn = randint(3, 6).draws("width", 0, 10)
    assert all(type(number) is int for number in drawn)
    assert [sorted(drawn[:4]), sorted(drawn[4:8])] == [[3, 4, 5, 6]] * 2
    assert randint(3, 6).draws("width", 0, 5) == drawn[:5]
    assert all(number % 10**6 for number in randint(10**9, 10**10).draws("seed", 0, 3))  # not rounded to four digits
    with raises_code("sweep-member-twice", "draw fewer"):
        SweepSpace({"width": randint(3, 6)}, size=5).members()
    with raises_code("sweep-member-twice", "members 0 and 1 have", "give each value once"):
        SweepSpace({"width": randint(3, 6), "seed": [1, 1]}, size=2).members()


def test_draws_do_not_change():
    """Members of old sweeps keep their values: the generator is that of the standard library."""
    generator = random.Random("0/lr")
    assert uniform(0, 1).draws("lr", 0, 2) == [float(f"{generator.random():.4g}") for _ in range(2)]


def test_the_largest_range_is_accepted():
    assert len(values_of("seed", [f"1..{MOST}"])) == MOST


def test_lists_are_combined_as_a_product():
    space = SweepSpace({"lr": [0.1, 0.2], "seed": range(3)})
    assert codes(space) == []
    assert rows(space) == [(0.1, 0), (0.1, 1), (0.1, 2), (0.2, 0), (0.2, 1), (0.2, 2)]


def test_zipped_lists_are_paired():
    space = SweepSpace({"lr": [0.1, 0.2], "seed": [5, 6]}, zipped=True)
    assert codes(space) == []
    assert rows(space) == [(0.1, 5), (0.2, 6)]
    assert codes(SweepSpace({"lr": [0.1, 0.2], "seed": [5, 6, 7]}, zipped=True)) == ["sweep-lengths"]


def test_draws_are_reproducible_and_independent_of_other_keys():
    def draws(key, **columns):
        space = SweepSpace(columns, size=4, seed=3)
        return [member.values[key] for member in space.members()]

    lr = draws("lr", lr=loguniform(1e-4, 1e-1))
    assert lr == draws("lr", lr=loguniform(1e-4, 1e-1), decay=uniform(0, 1))
    assert len(set(lr)) == 4
    assert all(1e-4 <= x <= 1e-1 for x in lr)
    other = SweepSpace({"lr": loguniform(1e-4, 1e-1)}, size=4, seed=4)
    assert [member.values["lr"] for member in other.members()] != lr


def test_draws_between_narrow_bounds_differ():
    """With four digits there would be 900 numbers between these bounds, and 300 draws would repeat some."""
    lr = uniform(0.9, 0.99).draws("b1", 0, 300)
    assert len(set(lr)) == 300
    assert all(0.9 <= x <= 0.99 for x in lr)
    assert lr[:20] == uniform(0.9, 0.99).draws("b1", 0, 20)
    assert max(len(str(x)) for x in lr[:5]) <= 6


def test_lists_are_combined_or_zipped_with_draws():
    columns = {"seed": [0, 1], "lr": uniform(0, 1), "decay": uniform(0, 1)}
    product = rows(SweepSpace(columns, size=2))
    assert [row[0] for row in product] == [0, 1, 0, 1]
    assert product[0][1:] == product[1][1:] != product[2][1:] == product[3][1:]
    space = SweepSpace(columns, size=2, zipped=True)
    assert codes(space) == []
    assert rows(space) == [product[0], product[3]]
    assert codes(SweepSpace(columns, size=3, zipped=True)) == ["sweep-lengths"]


def test_invalid_spaces_are_reported():
    assert codes(SweepSpace({})) == ["sweep-empty"]
    assert codes(SweepSpace({}, size=3)) == ["sweep-empty", "sweep-size-unused"]
    assert codes(SweepSpace({"lr": [1, 2]}, size=2)) == ["sweep-size-unused"]
    assert codes(SweepSpace({"lr": uniform(0, 1)})) == ["sweep-size-missing"]
    assert codes(SweepSpace({"a": range(100), "b": range(101)})) == ["sweep-too-large"]
    assert codes(SweepSpace({"a": range(100), "b": range(100)})) == []
    assert codes(SweepSpace({"lr": uniform(0, 1), "a": range(2)}, size=MOST)) == ["sweep-too-large"]


@pytest.mark.parametrize("values", [[0.1, 0.1], [1, 1.0], ["a", "a"], [[1], [1]]])
def test_members_with_equal_values_are_refused(values):
    with raises_code("sweep-member-twice", "0 and 1"):
        SweepSpace({"lr": values}).members()


def test_true_and_1_are_different_values():
    assert rows(SweepSpace({"a": [1, True, "1"]})) == [(1,), (True,), ("1",)]


def names(**columns):
    columns = {key.replace("__", "."): values for key, values in columns.items()}
    return [member.name for member in SweepSpace(columns).members()]


def test_member_names():
    assert names(lr=[1e-4, 3e-05], seed=[0]) == ["000-lr=0.0001-seed=0", "001-lr=3e-05-seed=0"]
    assert names(optimizer__weight_decay=[0, 0.1]) == ["000-weight_decay=0", "001-weight_decay=0.1"]
    assert names(train__batch_size=[1], valid__batch_size=[2]) == ["000-train.batch_size=1-valid.batch_size=2"]
    assert names(model__features=[[64, 10], None, True]) == [
        "000-features=64,10",
        "001-features=null",
        "002-features=true",
    ]
    assert names(model=["my.MLP", {"class_path": "my.CNN"}]) == ["000-model=my.MLP", "001-model=my.CNN"]


def test_member_names_are_safe_file_names():
    assert names(path=["../a b/c", "ä:\n*"]) == ["000-path=.._a_b_c", "001-path=ä"]
    (long,) = names(**{f"key{i}": ["ä" * 100] for i in range(20)})
    assert len(long.encode()) <= LONGEST_NAME
    assert names(seed=range(1001))[1000] == "1000-seed=1000"
