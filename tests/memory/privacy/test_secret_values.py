"""Secrets in plain values: facts and meta have names beside secrets, in lists and in objects."""

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.privacy.redaction import redact, redact_trajectory, redact_values

SECRET = "Tr0ub4dorXy9"
VALUES = [
    {"args": ["--password", SECRET]},
    {"argv": ["mysql", "-h", "db", "--db-password", SECRET]},
    {"args": ("--api-key", SECRET)},
    {"pair": {"name": "password", "value": SECRET}},
    {"pair": {"value": SECRET, "type": "textbox", "name": "Password"}},
    {"fields": [{"field": "user", "text": "bob"}, {"field": "pwd", "text": SECRET}]},
    {"auth": ["password", SECRET]},
    {"auth": [["user", "bob"], ["password", SECRET]]},
    {"pw": SECRET},
    {"db_pw": SECRET},
    {"psk": SECRET},
    {"password": {"value": SECRET}},
]
NORMAL = [
    {"fields": ["password", "email", "name"]},
    {"args": ["--password", "--verbose"]},
    {"args": ["--password", "$PASSWORD", "--name", "bob99"]},
    {"args": ["--name", "bob99x"]},
    {"inventory": ["token", "room2", "secret", "door17"]},
    {"pair": {"name": "user", "value": "bob99"}},
    {"pair": {"name": "password", "type": "textbox", "ref": "e12"}},
    {"pair": {"name": "token", "text": "a bronze coin of 3 grams"}},
    {"upward": "north", "pwm": "128"},
    {"password": {"type": "string", "minLength": 3}},
]


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_a_secret_beside_its_name_leaves_facts_and_meta(values):
    state = State("x", facts=values, signature="-")
    episode = Trajectory("x", (Step(state, "wait", state, Diagnosis(True)),), success=True, meta=values)
    once = redact_trajectory(episode)
    assert SECRET not in repr(once)
    assert redact_trajectory(once) is once


@pytest.mark.parametrize("values", NORMAL, ids=str)
def test_values_beside_other_names_stay_the_same_object(values):
    assert redact_values(values) is values


def test_a_pin_in_facts_is_redacted_and_another_number_stays():
    told = redact_values({"pin": "4829", "card": {"cvv": "123"}, "pins": "4829", "spin": "4829"})
    assert told == {"pin": "[redacted:pin]", "card": {"cvv": "[redacted:pin]"}, "pins": "4829", "spin": "4829"}


def test_no_other_text_of_a_list_is_redacted():
    told = redact_values({"args": ["login", "--password", SECRET, "--user", "bob99"]})
    assert told == {"args": ["login", "--password", "[redacted:password]", "--user", "bob99"]}


def test_names_that_people_choose_are_redacted(tmp_path):
    """The arm and the ending of an episode, and the teams of a bank."""
    line = f"password={SECRET}"
    path = tmp_path / "x.db"
    with ExperienceLibrary.open(path) as library:
        library.record(Trajectory("x", (), success=True, arm=line, ending=line))
        bank = library.admin.bank("x")
        bank.pull(bank.put(line, "k", "v"), line)
        bank.pull(bank.put("a", "k", "v"), line)
        assert [entry.team for entry in bank.entries()] == ["password=[redacted:password]", "a"]
        assert len(bank.pulls(own=True)) == len(bank.pulls()) == 1
    assert all(SECRET.encode() not in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize("beginning", ["sntryu_", "FlyV1 fm2_", "ATBB", "CCIPAT_"])
def test_more_beginnings_of_tokens_are_known(beginning):
    """Tokens of Sentry, Fly, Bitbucket and CircleCI, without a name before them."""
    secret = f"{beginning}{'a1B2c3D4e5' * 4}"
    assert secret[-40:] not in redact(f"got {secret} back")
    assert redact(f"{beginning} is a beginning") == f"{beginning} is a beginning"
