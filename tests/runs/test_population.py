"""Tests of the file that lists the members of a population, which may come from an untrusted source."""

import json

import pytest

from learner.runs.population import member_index, read_members


@pytest.mark.parametrize("name", ["", ".", "..", "../other", "/etc", "a/b"])
def test_members_outside_of_the_population_are_skipped(tmp_path, name):
    """Files are written and removed under these names."""
    members = [{"directory": name, "lr": 0.1}, {"directory": "001-lr=0.2", "lr": 0.2}]
    (tmp_path / "population.json").write_text(json.dumps({"members": members}))
    assert read_members(tmp_path) == members[1:]
    assert member_index(tmp_path / "001-lr=0.2") is not None
