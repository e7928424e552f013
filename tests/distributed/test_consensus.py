"""Tests of the consensus of processes: when they synchronize, and on what they agree."""

import itertools
import threading

import pytest

from learner.distributed.consensus import FIRST_STEPS, SLOW_STEPS, Consensus
from tests.support.codes import raises_code

QUIET = {"reason": None, "save": False, "since": 0.0, "halted": False, "pace": 1}


class Peers:
    """A fake process group: process 0 is under test, and `others` are the statuses of its peers."""

    count = 3

    def __init__(self, *others):
        self.others = list(others)
        self.syncs = 0

    def all_reduce_json(self, status, combine, what):
        self.syncs += 1
        quiet = {**QUIET, "turns": dict.fromkeys(status["turns"], 0.0)}
        return combine([status, *({**quiet, **other} for other in self.others)])

    def shapes_read(self):
        return {}

    def all_gather_json(self, value, what):
        return [value] * self.count


def consensus_with(*others, seconds_per_turn=0.01, step=0):
    peers, now = Peers(*others), [0.0]
    consensus = Consensus(peers, step, clock=lambda: now[0])

    def turn(at=None, seconds=seconds_per_turn, **status):
        now[0] += seconds
        consensus.sync(lambda: {**QUIET, **status}, at)

    return consensus, peers, turn


def test_a_stop_reason_of_one_process_holds_for_all_after_a_sync():
    consensus, peers, turn = consensus_with({}, {})
    turn(0)
    assert consensus.reason is None
    peers.others[1]["reason"] = "sigterm"
    turn(1, reason="time limit")
    assert consensus.reason == "time limit", "the first process with a reason decides for all"
    peers.others[1]["reason"] = None
    turn(2)
    assert consensus.reason == "time limit"


def test_a_sync_compares_the_records_of_processes():
    consensus, peers, turn = consensus_with({}, {})
    turn(0)
    consensus.records.add_batches("train", 1, 1, ["{}"])
    peers.others = [{"records": consensus.records.digest}] * 2
    turn(1)
    consensus.records.add_batches("train", 1, 2, ["{}"])
    with raises_code("process-shapes-differ"):
        turn(2)


def test_save_and_halt_requests_of_one_process_hold_for_all():
    consensus, _, turn = consensus_with({"save": True, "since": 99.0}, {"halted": True})
    turn(0, since=4.0)
    assert (consensus.save, consensus.halted, consensus.since) == (True, True, 4.0), "the clock of process 0 counts"


def test_processes_sync_every_turn_until_the_pace_is_known_then_once_a_second():
    consensus, peers, turn = consensus_with({"pace": 40}, {"pace": 25}, step=100)
    for step in range(100, 100 + SLOW_STEPS):
        turn(step, pace=50)
    assert peers.syncs == SLOW_STEPS
    assert (consensus.steps(100), consensus.batches) == (1, 1)
    turn(100 + SLOW_STEPS, pace=50)
    assert (consensus.steps(100 + FIRST_STEPS), consensus.steps(100 + FIRST_STEPS - 1), consensus.batches) == (
        25,
        1,
        25,
    )
    for step in range(100 + SLOW_STEPS + 1, 100 + FIRST_STEPS):
        turn(step)
    assert peers.syncs == FIRST_STEPS, "later dispatches have more steps"
    assert turns_with_sync(peers, turn, 427) == [0, 2, 6, 14, 30, 62, 126, 226, 326, 426], "1 s is 100 turns of 0.01 s"


def turns_with_sync(peers, turn, turns):
    """Return the numbers of the turns that synchronize."""
    synced = []
    for number in range(turns):
        before = peers.syncs
        turn(200)
        synced += [number] * (peers.syncs - before)
    return synced


def test_the_slowest_process_determines_how_often_they_sync():
    _, peers, turn = consensus_with({"turns": {"train": 0.1}}, {})
    peers.others[0]["turns"] = {}  # before its first turn
    turn(SLOW_STEPS)
    peers.others[0]["turns"] = {"train": 0.1}
    assert turns_with_sync(peers, turn, 38) == [0, 2, 6, 14, 24, 34], "1 s is 10 turns of 0.1 s"


def test_turns_that_return_early_do_not_delay_the_next_sync():
    """A dispatch returns immediately while the device still computes earlier ones."""
    _, peers, turn = consensus_with({}, {})
    turn(SLOW_STEPS)
    now, synced = 0.0, [0.0]
    for _ in range(400):
        before, seconds = peers.syncs, 0.0 if now == synced[-1] else 0.25
        turn(200, seconds)
        now += seconds
        if peers.syncs > before:
            synced.append(now)
    assert max(b - a for a, b in itertools.pairwise(synced)) <= 2.0


def test_training_and_validation_turns_are_timed_separately():
    """Otherwise many short validation turns would delay the next sync by as many long training turns."""
    _, peers, turn = consensus_with({}, {})
    turn(SLOW_STEPS)
    now, synced = 0.0, []
    for turns, step, seconds in [(3, 200, 0.5), (500, None, 0.001), (20, 203, 0.5), (100, None, 0.001), (4, 223, 0.5)]:
        for _ in range(turns):
            before = peers.syncs
            turn(step, seconds)
            now += seconds
            synced += [now] * (peers.syncs - before)
    assert max(b - a for a, b in itertools.pairwise(synced)) <= 1.6


def test_validation_does_not_fix_the_dispatch_size():
    """Each process prepares training data meanwhile, and would apply the new size from a different batch."""
    consensus, _, turn = consensus_with({"pace": 9}, {})
    for _ in range(3 * SLOW_STEPS):
        turn(None)
    assert consensus.batches == 1


@pytest.mark.parametrize("end", ["known", "released"])
def test_the_data_thread_waits_for_the_dispatch_size(end):
    consensus, _, turn = consensus_with({"pace": 9}, {"pace": 9})
    got = []
    thread = threading.Thread(target=lambda: got.append(consensus.steps(FIRST_STEPS)), daemon=True)
    thread.start()
    turn(SLOW_STEPS - 1)
    assert thread.is_alive()
    turn(SLOW_STEPS, pace=7) if end == "known" else consensus.release()
    thread.join(60)
    assert got == [7 if end == "known" else 1]
