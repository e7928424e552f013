"""Tests of the texts about processes that differ."""

from learner.distributed.differences import describe_difference


def test_differences_are_listed_by_path():
    config = {"model": {"class_path": "MLP", "sizes": [8, 8]}, "text": "a\nb\nc"}
    other = {"model": {"class_path": "MLP", "sizes": [8, 16, 4]}, "text": "a\nx\nc"}
    assert describe_difference("the config", [config, config, other]).splitlines() == [
        "the processes of the run differ in the config:",
        "  model.sizes.1 is 8 in processes 0 and 1; 16 in process 2",
        "  model.sizes.2 is missing in processes 0 and 1; 4 in process 2",
        '  text.line 2 is "b" in processes 0 and 1; "x" in process 2',
    ]
    many = describe_difference("it", [{str(n): index for n in range(10)} for index in range(2)]).splitlines()
    assert (len(many), many[-1]) == (8, "  and at 4 more places")


def test_what_some_processes_lack_is_one_difference():
    save = {"last": 2, "best": 1}
    assert describe_difference(
        "it", [{"save": save, "hooks": {"every": 1}}, {"save": None, "hooks": {}}]
    ).splitlines() == [
        "the processes of the run differ in it:",
        '  save is {"last": 2, "best": 1} in process 0; null in process 1',
        "  hooks.every is 1 in process 0; missing in process 1",
    ]


def test_long_texts_are_cut_around_their_first_difference():
    text = describe_difference("it", ["x" * 500 + "left" + "y" * 500, "x" * 500 + "right"])
    assert text == (
        f'the processes of the run differ in it: …{"x" * 40}left{"y" * 76} in process 0; …{"x" * 40}right" in process 1'
    )
