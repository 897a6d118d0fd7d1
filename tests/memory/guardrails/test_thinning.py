"""Guardrails do not pile up: a check looks at few, the redundant and the idle leave, and come back when needed."""

import pytest

from hardwon.memory import Diagnosis, Failure, Item, State, Step, Trajectory
from hardwon.memory.guardrails.conditions import Guard, covers, forbids
from hardwon.memory.guardrails.tuning import TUNING
from hardwon.memory.reasons import Reasons
from hardwon.memory.situations.keys import Attempt, Situation

SHOWN = {"text": "table"}
STATE = State("You see a table.", task="clean up the room")


def rule(forbids, condition=SHOWN, **fields):
    """A guardrail that rules made."""
    given = {"confidence": 0.9, "source": "experience", "writer": "rules", **fields}
    return Item("guardrail", f"no {forbids}", condition=condition, forbids=forbids, **given)


@pytest.mark.parametrize("named", [False, True])
def test_guardrails_of_other_things_cost_a_check_nothing(named):
    """With ten times as many of the same verb and condition, the same number is evaluated."""
    here, action, evaluated = Situation(STATE), "put cup in table", []
    condition = {"around": here.context(action)} if named else SHOWN
    own = [rule(action, condition, id="own"), rule("put {1} in {2}", condition, id="wide")]
    for others in (30, 300):
        guard = Guard([*own, *(rule(f"put thing{one}x in table", condition, id=f"gu-{one}") for one in range(others))])
        assert guard.check(Attempt(here, action)).items == ("own", "wide")
        evaluated.append(guard.evaluated)
    assert evaluated == [2, 2]


PATTERNS = [
    "put {1} in {2}", "put cup in {2}", "put {1} in table", "put cup in table", "put cup in table 2", "open door",
    "put red cup in old table", "pay(to={1}, sum={2})", "pay(sum=3, to=bob)", "pay(to=bob, sum={2})", "npm test",
    "run(command=make test)", "run(command={1})", "click[Buy Now]", "forward",
]  # fmt: skip
ACTIONS = [
    "put cup in table", "put red cup in table 2", "put cup in old table", "put plate in table", "put cup in shelf",
    "pay(to=bob, sum=3)", "pay(sum=3, to=bob)", "pay(to=eve, sum=3)", "run(command=make test)", "npm test",
    "run(command=npm test)", "click[Buy Now]", "click[Back]", "forward", "open door", "open door with key",
]  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS)
def test_a_guardrail_is_found_wherever_it_holds(action):
    """The index finds what looking at every guardrail finds."""
    items = [rule(pattern, id=f"gu-{at:02}") for at, pattern in enumerate(PATTERNS)]
    here = Situation(STATE)
    expected = [item.id for item in items if forbids(item, Attempt(here, action))]
    assert [item.id for item in Guard(items).forbidding(Attempt(here, action))] == expected


@pytest.mark.parametrize(
    ("wide", "narrow", "is_covered"),
    [
        (rule("put {1} in {2}"), rule("put cup in table"), True),
        (rule("put {1} in table"), rule("put cup in table"), True),
        (rule("put cup in table"), rule("put {1} in table"), False),
        (rule("put {1} in {2}"), rule("open door"), False),
        (rule("put {1} in {2}", {"text": "shelf"}), rule("put cup in table"), False),
        (rule("put {1} in {2}", {"any": [SHOWN, {"text": "shelf"}]}), rule("put cup in table"), True),
        (rule("put {1} in {2}"), rule("put cup in table", {"all": [SHOWN, {"text": "shelf"}]}), True),
        (rule("put {1} in {2}", {"all": [SHOWN, {"text": "shelf"}]}), rule("put cup in table"), False),
        (rule("put {1} in {2}"), rule("put cup in table", {"any": [SHOWN, {"text": "shelf"}]}), False),
    ],
)
def test_a_wider_guardrail_covers_a_narrower_one(wide, narrow, is_covered):
    """Where its pattern takes in the other's, and its condition holds wherever the other's does."""
    assert covers(wide, narrow) is is_covered


def test_a_narrow_guardrail_is_not_added_beside_a_wide_one(library):
    """It would never decide; one that is not sure enough to refuse covers nothing."""
    library.add(rule("put {1} in {2}", confidence=0.5))
    assert library.add(rule("put cup in table")).status == "added"
    wide = library.add(rule("put {1} in shelf"))
    refused = library.add(rule("put cup in shelf"))
    assert (refused.status, wide.item_id in refused.reason) == ("rejected", True)


def test_a_wide_guardrail_retires_the_narrow_ones(library):
    """With the reason; those that a person wrote or pinned stay."""
    narrow = library.add(rule("put cup in table")).item_id
    pinned = library.add(rule("put plate in table", pinned=True)).item_id
    wide = library.add(rule("put {1} in {2}")).item_id
    assert (library.items.get(narrow).status, library.items.get(pinned).status) == ("retired", "active")
    assert wide in library.items.history(narrow)[-1]["detail"]["why"]


def play(library, episodes, action="put plate in sink", why=None, failed=False):
    """Record so many episodes of one step."""
    failure = Failure.INVALID_ACTION if failed else Failure.NONE
    judged = Diagnosis(not failed, failure, 0.0, failed)
    for _ in range(episodes):
        library.record(
            Trajectory(STATE.task, (Step(STATE, action, STATE, judged, why=Reasons.of(why or {})),), True, 1.0)
        )


def test_a_guardrail_that_never_decides_is_retired(library):
    """After so many episodes with its form of action, with the reason, until it is needed."""
    idle = library.add(rule("put cup in table")).item_id
    play(library, TUNING.idle_after - 1)
    library.evolve()
    assert library.items.get(idle).status == "active"
    play(library, TUNING.search_every)
    assert idle in library.evolve().retired
    assert "decided nothing in" in library.items.history(idle)[-1]["detail"]["why"]


def test_a_guardrail_of_a_form_that_nobody_uses_is_not_idle(library):
    """It had no chance to decide anything."""
    kept = library.add(rule("open safe")).item_id
    play(library, TUNING.idle_after + TUNING.search_every)
    library.evolve()
    assert library.items.get(kept).status == "active"


@pytest.mark.parametrize("how", ["recorded", "enforced"])
def test_a_guardrail_that_decides_stays_longer(library, how):
    """A refusal counts, whether its episode was recorded or a client asked."""
    kept = library.add(rule("put cup in table")).item_id
    if how == "recorded":
        play(library, 1, why={"blocked": [kept]})
    else:
        assert not library.enforce(STATE, "put cup in table").allowed
    play(library, TUNING.idle_after + TUNING.search_every)
    library.evolve()
    assert library.items.get(kept).status == "active"
    assert library.admin.verify() == []
    play(library, TUNING.idle_since_use)
    library.evolve()
    assert library.items.get(kept).status == "retired"


def test_a_refusal_leaves_the_row_of_its_guardrail_undamaged(library):
    """The episode after which a guardrail was last of use is a column of its row, which has a checksum."""
    kept = library.add(rule("put cup in table")).item_id
    play(library, 3)
    assert not library.enforce(STATE, "put cup in table").allowed
    ((fresh,),) = library._file.store.rows("SELECT fresh FROM items WHERE id = ?", (kept,))
    assert fresh == 3
    assert library.admin.verify() == []


def test_a_retired_guardrail_comes_back_when_its_call_fails_again(library):
    """Only with failures since its retirement; what a person retired stays so."""
    old = library.add(rule("put cup in table", provenance=(1, 2))).item_id
    by_hand = library.add(rule("put cup in shelf", provenance=(1, 2))).item_id
    library.items.retire(by_hand, "I know better")
    play(library, TUNING.idle_after + TUNING.search_every)
    library.evolve()
    assert library.add(rule("put cup in table", provenance=(1, 2))).status == "rejected"
    newest = TUNING.idle_after + TUNING.search_every
    assert library.add(rule("put cup in table", provenance=(2, newest))).status == "rejected"
    assert library.add(rule("put cup in table", provenance=(2, newest + 1))).status == "added"
    assert library.add(rule("put cup in shelf", provenance=(2, newest + 1))).status == "rejected"
    assert library.items.get(old).status == "active"


@pytest.mark.parametrize(("source", "status"), [("experience", "added"), ("person", "rejected")])
def test_a_guardrail_from_elsewhere_covers_only_if_a_person_wrote_it(library, source, status):
    """Experience of another environment says nothing here, whatever its pattern; a person's word holds everywhere."""
    for environment in ("here", "elsewhere"):
        step = Step(STATE, "put cup in table", STATE, Diagnosis(False, Failure.INVALID_ACTION))
        library.record(Trajectory(STATE.task, (step,), False, id=environment, meta={"environment": environment}))
    here, elsewhere = (library.episodes.get(name).steps[0].id for name in ("here", "elsewhere"))
    wide = library.add(rule("put {1} in {2}", source=source, provenance=(elsewhere,)))
    assert wide.status == "added"
    assert library.add(rule("put cup in table", source="experience", provenance=(here,))).status == status
