"""The guard refuses what is forbidden or not admissible, and says why."""

from typing import Any

from hardwon.memory import Diagnosis, Failure, Item, Step, Verdict
from hardwon.runtime.interfaces.types import Decision
from hardwon.runtime.loop.nodes import ROUTES
from hardwon.runtime.loop.tuning import TUNING

from .states import RED, episode, forbid, settings


def guard(nodes, action, **fields):
    """What the guard changes for this action."""
    return nodes.guard(episode(decision=Decision(action), **fields))


def after(state, update):
    """What follows the guard."""
    return ROUTES["guard"](state | update)


def test_a_forbidden_action_is_refused_with_the_cause(nodes, library):
    """The policy is asked again with the constraint; the guardrail is credited."""
    forbid(library, "go east")
    update = guard(nodes, "go east")
    assert (update["forbidden"], update["replans"]) == ({"go east": "no go east"}, 1)
    assert update["blocked"] == (library.items.find()[0].id,)
    assert after(episode(decision=Decision("go east")), update) == "decide"


def test_an_action_that_is_not_admissible_is_refused(nodes):
    """Without a guardrail; nobody is credited."""
    update = guard(nodes, "fly")
    assert update["forbidden"] == {"fly": "it is not among the admissible actions"}
    assert update["blocked"] == ()


def test_where_any_text_is_an_action_all_is_admissible(nodes):
    """An environment without a list takes what comes."""
    assert guard(nodes, "fly", actions=()) == {}


def test_the_second_time_all_that_is_forbidden_is_told(nodes, library):
    """So that the third choice can be a good one."""
    forbid(library, "go east", "go west")
    first = guard(nodes, "go east")
    second = guard(nodes, "go west", **first)
    assert set(second["forbidden"]) == {"go east", "go west"}
    assert second["replans"] == TUNING.max_replans


def test_where_any_text_is_an_action_insisting_does_not_help(nodes, library):
    """The only action known is not the only one there is."""
    forbid(library, "go east")
    state = episode(decision=Decision("go east"), actions=())
    for _ in range(TUNING.max_replans + 1):
        state = {**state, **nodes.guard(state)}
    assert ROUTES["guard"](state) == "diagnose"


def test_a_random_trial_runs_what_a_guardrail_forbids_but_nothing_inadmissible(nodes, library, monkeypatch):
    monkeypatch.setattr("hardwon.runtime.loop.nodes.is_forced", lambda *_: True)
    forbid(library, "go east")
    assert guard(nodes, "go east") == {"forbidden": {}, "overrode": (library.items.find()[0].id,)}
    assert set(guard(nodes, "fly")["forbidden"]) == {"fly"}


def test_what_is_not_admissible_is_not_overridden(nodes, library):
    """Even where everything else is forbidden."""
    forbid(library, "go east", "go west", "wait")
    state = episode(forbidden={"go east": "", "go west": "", "wait": ""}, decision=Decision("fly"), replans=2)
    assert "fly" in nodes.guard(state)["forbidden"]


def test_with_warnings_a_forbidden_action_runs_and_is_no_trial(nodes, library):
    forbid(library, "go east")
    (item,) = library.items.find()
    update = guard(settings(nodes, guardrails="warn"), "go east")
    assert update == {"forbidden": {}, "blocked": (), "overrode": (item.id,), "trial": ()}


def test_a_trial_of_a_guardrail_is_on_the_step(nodes, library, monkeypatch):
    """Its outcome decides about the guardrail."""
    verdict = Verdict(True, "g", "no", trial=True, items=("g",))
    monkeypatch.setattr(library, "enforce", lambda *_, **__: verdict)
    assert guard(nodes, "go east") == {"forbidden": {}, "blocked": (), "overrode": ("g",), "trial": ("g",)}


def test_insisting_on_what_a_person_forbade_ends_the_episode(nodes, library):
    """The policy is not asked again."""
    condition = {"text": "red"}
    library.add(Item("guardrail", "never", condition=condition, forbids="go east", confidence=0.9, pinned=True))
    refused = Step(RED, "go east", RED, Diagnosis(False, Failure.BLOCKED))
    state = episode(decision=Decision("go east"), steps=(refused,) * TUNING.max_refusals)
    state.update(nodes.guard(state))
    assert ROUTES["guard"](state) == "diagnose"
    assert nodes.diagnose(state)["ending"] == "blocked"


def test_the_last_choice_overrides_nothing_where_nothing_forbids_it(nodes, library):
    """Without guardrails, or if the guardrail is gone since."""
    everything = dict.fromkeys(("go east", "go west", "wait"), "no")
    run: dict[str, Any] = {"forbidden": {}, "blocked": ()}
    assert guard(nodes, "wait", forbidden=everything) == run
    forbid(library, "wait")
    assert guard(settings(nodes, guardrails=None), "wait", forbidden=everything) == run
