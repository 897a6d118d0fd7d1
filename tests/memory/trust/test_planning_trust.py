"""Planning without a model learns from trusted episodes alone: crafted ones are neither chained nor followed."""

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory

CLOSED = State("A box is closed.", task="find the coin")
OPENED = State("A box is open. There is a coin.", task="find the coin")
STEPS = (
    Step(CLOSED, "open box", OPENED, Diagnosis(True), admissible=("open box", "wait")),
    Step(OPENED, "take coin", OPENED, Diagnosis(True), reward=1.0, t=1, admissible=("take coin", "wait")),
)


def learn(trust):
    library = ExperienceLibrary.open(":memory:")
    for seed in range(4):
        writer = "" if trust == "trusted" else "token:stranger"
        library.record(Trajectory("find the coin", STEPS, True, 1.0, seed=seed, writer=writer, trust=trust))
    return library


@pytest.mark.parametrize(("trust", "number"), [("trusted", 4), ("untrusted", 0)])
def test_only_trusted_successes_are_demonstrations(trust, number):
    with learn(trust) as library:
        assert len(library.episodes.index_demonstrations().list_demonstrations("find the coin")) == number


@pytest.mark.parametrize(("trust", "chains"), [("trusted", True), ("untrusted", False)])
def test_only_trusted_steps_say_what_leads_where(trust, chains):
    with learn(trust) as library:
        assert (library.look_ahead(CLOSED, ["open box", "wait"]).by_action["open box"].unlock > 0.1) is chains
