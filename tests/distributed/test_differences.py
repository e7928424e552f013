"""Tests of the texts about processes that differ."""

from learner.distributed.differences import describe_difference


def test_differences_are_listed_by_path():
    config = {"model": {"class_path": "MLP", "sizes": [8, 8]}, "text": "a\nb\nc"}
    other = {"model": {"class_path": "MLP", "sizes": [8, 16, 4]}, "text": "a\nx\nc"}
    assert describe_difference("the config", [config, config, other]).splitlines() == [
        "the processes of the run differ in the config:",
        "  model.sizes.1 is 8 in processes 0 and 1; 16 in process 2",
        '  text.line 2 is "b" in processes 0 and 1; "x" in process 2',
        "  model.sizes.2 is missing in processes 0 and 1; 4 in process 2",
    ]
    many = describe_difference("it", [{str(n): index for n in range(10)} for index in range(2)]).splitlines()
    assert (len(many), many[-1]) == (8, "  and at 4 more places")
