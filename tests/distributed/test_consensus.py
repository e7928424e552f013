"""What one process knows alone, and when all of them act on it."""

import itertools
import threading

import pytest

from learner.distributed.consensus import FIRST_STEPS, SLOW_STEPS, Consensus

QUIET = {"reason": None, "save": False, "since": 0.0, "halted": False, "pace": 1}


class Table:
    """What the processes say to each other, without processes: this one says it all."""

    count = 3

    def __init__(self, *others):
        self.others = list(others)
        self.meetings = 0

    def all_reduce_json(self, word, combine, what):
        self.meetings += 1
        quiet = {**QUIET, "turns": dict.fromkeys(word["turns"], 0.0)}
        return combine([word, *({**quiet, **other} for other in self.others)])


def agreement(*others, seconds_per_turn=0.01, step=0):
    table, now = Table(*others), [0.0]
    made = Consensus(table, step, clock=lambda: now[0])

    def turn(at=None, seconds=seconds_per_turn, **said):
        now[0] += seconds
        made.sync(lambda: {**QUIET, **said}, at)

    return made, table, turn


def test_a_reason_of_anybody_is_everybodys_from_the_meeting_on():
    made, table, turn = agreement({}, {})
    turn(0)
    assert made.reason is None
    table.others[1]["reason"] = "sigterm"
    turn(1, reason="time limit")
    assert made.reason == "time limit", "the first process that has one counts, in all of them"
    table.others[1]["reason"] = None
    turn(2)
    assert made.reason == "time limit"


def test_a_wish_to_save_and_a_step_that_was_read_are_everybodys():
    made, _, turn = agreement({"save": True, "since": 99.0}, {"halted": True})
    turn(0, since=4.0)
    assert (made.save, made.halted, made.since) == (True, True, 4.0), "the clock is that of process 0"


def test_they_meet_at_every_turn_until_they_know_how_fast_they_are_and_then_once_a_second():
    made, table, turn = agreement({"pace": 40}, {"pace": 25}, step=100)
    for step in range(100, 100 + SLOW_STEPS):
        turn(step, pace=50)
    assert table.meetings == SLOW_STEPS
    assert (made.steps(100), made.batches) == (1, 1)
    turn(100 + SLOW_STEPS, pace=50)
    assert (made.steps(100 + FIRST_STEPS), made.steps(100 + FIRST_STEPS - 1), made.batches) == (25, 1, 25)
    for step in range(100 + SLOW_STEPS + 1, 100 + FIRST_STEPS):
        turn(step)
    assert table.meetings == FIRST_STEPS, "later dispatches have more steps"
    assert meetings_at(table, turn, 427) == [0, 2, 6, 14, 30, 62, 126, 226, 326, 426], "1 s are 100 turns of 0.01 s"


def meetings_at(table, turn, turns, *said):
    """The turns that end with a meeting."""
    met = []
    for number in range(turns):
        before = table.meetings
        turn(200, *said)
        met += [number] * (table.meetings - before)
    return met


def test_the_slowest_says_how_often_they_meet():
    _, table, turn = agreement({"turns": {"train": 0.1}}, {})
    table.others[0]["turns"] = {}  # before its first turn
    turn(SLOW_STEPS)
    table.others[0]["turns"] = {"train": 0.1}
    assert meetings_at(table, turn, 38) == [0, 2, 6, 14, 24, 34], "1 s are 10 turns of 0.1 s"


def test_turns_that_look_short_after_a_meeting_do_not_put_the_next_one_off():
    """A dispatch returns at once where the device still computes the ones before."""
    _, table, turn = agreement({}, {})
    turn(SLOW_STEPS)
    now, met = 0.0, [0.0]
    for _ in range(400):
        before, seconds = table.meetings, 0.0 if now == met[-1] else 0.25
        turn(200, seconds)
        now += seconds
        if table.meetings > before:
            met.append(now)
    assert max(b - a for a, b in itertools.pairwise(met)) <= 2.0


def test_turns_of_training_and_validation_count_by_their_own_time():
    """Or a validation of many short turns would put the meeting off by as many long ones of training."""
    _, table, turn = agreement({}, {})
    turn(SLOW_STEPS)
    now, met = 0.0, []
    for turns, step, seconds in [(3, 200, 0.5), (500, None, 0.001), (20, 203, 0.5), (100, None, 0.001), (4, 223, 0.5)]:
        for _ in range(turns):
            before = table.meetings
            turn(step, seconds)
            now += seconds
            met += [now] * (table.meetings - before)
    assert max(b - a for a, b in itertools.pairwise(met)) <= 1.6


def test_a_validation_does_not_settle_how_much_is_dispatched():
    """It would be settled at another batch of the data that is being prepared in each process."""
    made, _, turn = agreement({"pace": 9}, {})
    for _ in range(3 * SLOW_STEPS):
        turn(None)
    assert made.batches == 1


@pytest.mark.parametrize("end", ["known", "released"])
def test_the_thread_that_prepares_the_data_waits_for_it(end):
    made, _, turn = agreement({"pace": 9}, {"pace": 9})
    got = []
    thread = threading.Thread(target=lambda: got.append(made.steps(FIRST_STEPS)), daemon=True)
    thread.start()
    turn(SLOW_STEPS - 1)
    assert thread.is_alive()
    turn(SLOW_STEPS, pace=7) if end == "known" else made.release()
    thread.join(60)
    assert got == [7 if end == "known" else 1]
