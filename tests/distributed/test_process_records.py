"""Tests of the records that processes compare, with processes in threads."""

import json
import re

from learner.distributed.process_records import ProcessRecords
from tests.support.process_groups import errors_of_all, groups


def shapes(*rows, width=2):
    return [json.dumps({"x": [number, width], "y": [number]}) for number in rows]


def test_equal_rows_in_other_groups_are_equal_records():
    members, clients = groups(2)

    def run(index):
        records = ProcessRecords(members[index])
        records.compare()  # nothing was recorded
        assert clients[index].messages == 0
        for first, rows in [(1, [6] * 4), (5, [3])] if index else [(1, [6, 6]), (3, [6, 6, 3])]:
            records.add_batches("train", 1, first, shapes(*rows))
        records.compare()
        sent = clients[index].messages
        records.compare()
        assert clients[index].messages == sent

    assert errors_of_all(2, run) == [None] * 2


def test_other_rows_raise_in_all_processes_and_name_batch_and_rows():
    """The sums of the rows are equal."""
    members, _ = groups(3)

    def run(index):
        records, rows = ProcessRecords(members[index]), [6, 4, 6, 5] if index == 1 else [6, 6, 4, 5]
        members[index].record_read("train", 2, 4, ended=True, shapes=shapes(*rows))
        records.add_batches("train", 2, 1, shapes(*rows))
        records.meet("the end of the train data")

    errors = errors_of_all(3, run)
    assert {error.code for error in errors} == {"process-rows-differ"}
    text = "batch 2 in pass 2 of the train data has 6 rows in process 0, 4 rows in process 1, 6 rows in process 2"
    assert all(text in str(error) for error in errors)


def test_other_axes_raise_in_all_processes_and_name_field_and_shapes():
    """Process 1 has dispatched its batches in other groups, and read another batch ahead."""
    members, _ = groups(2)

    def run(index):
        records, texts = ProcessRecords(members[index]), [*shapes(6), *shapes(6, width=2 + index)]
        members[index].record_read("valid", 1, 2, ended=False, shapes=texts)
        if index:
            members[index].record_read("valid", 1, 3, ended=False, shapes=shapes(6, width=9))
        records.add_batches("valid", 1, 1, texts)
        records.compare()

    errors = errors_of_all(2, run)
    assert {error.code for error in errors} == {"process-shapes-differ"}
    text = "batch 2 in pass 1 of the valid data has x [6, 2] in process 0, x [6, 3] in process 1"
    assert all(text in str(error) for error in errors)


def errors_of_updates(*updates_of_each):
    """Return the error of each process whose hooks return these updates, as `(hook, step, updates)`."""
    members, _ = groups(len(updates_of_each))

    def run(index):
        records = ProcessRecords(members[index])
        for update in updates_of_each[index]:
            records.add_updates(*update)
        records.call_hooks()
        records.compare()

    return errors_of_all(len(updates_of_each), run)


def test_updates_of_some_processes_raise_in_all_and_name_hook_step_and_processes():
    first, second = ("halve", 20, {"lr_scale": 0.5}), ("clip", 20, {"model": "<checksum 0>"})
    for updates, text in [
        (([], [first], []), "the hook halve did not .* after step 20: none in processes 0 and 2; lr_scale=0.5 in pro"),
        (
            ([first, second], [second]),
            "the hook halve did not .* step 20: lr_scale=0.5 in process 0; none in process 1",
        ),
        (
            ([first, second], [first]),
            "the hook clip did not .* step 20: model=<checksum 0> in process 0; none in proce",
        ),
        (
            ([("halve", 9, {"lr_scale": 0.1})], [first]),
            "the hook halve did not .* step 9: lr_scale=0.1 in process 0; n",
        ),
    ]:
        errors = errors_of_updates(*updates)
        assert {error.code for error in errors} == {"process-updates-differ"}
        assert all(re.search(text, str(error)) for error in errors), errors[0]


def test_equal_updates_pass():
    updates = [("halve", 20, {"lr_scale": 0.5}), ("halve", 30, {"lr_scale": 0.25})]
    assert errors_of_updates(updates, updates) == [None, None]
    assert errors_of_updates([], []) == [None, None]


def test_shapes_that_no_process_has_kept_differ_all_the_same():
    members, _ = groups(2)

    def run(index):
        records = ProcessRecords(members[index])
        records.add_batches("train", 1, 1, shapes(index))
        records.compare()

    assert {error.code for error in errors_of_all(2, run)} == {"process-shapes-differ"}
