from dataclasses import replace

import pytest

from hardwon.memory import Item, State
from hardwon.memory.errors import ConfigError
from hardwon.memory.learning.curator import GENERIC, STRENGTH, says_the_same
from hardwon.memory.learning.tuning import TUNING


def made(kind, title, **fields):
    """An item as a program writes it: from experience, with evidence."""
    return Item(kind, title, **{"source": "experience", "writer": "rules", "provenance": (1,), **fields})


GUARDRAIL = made("guardrail", "no fire", condition={"text": "gas"}, forbids="light {1}", confidence=0.9)
SKILL = made(
    "skill", "brew tea", condition={"text": "kettle"}, steps=("fill kettle", "boil water"), verify={"text": "tea"}
)
REMEDY = made(
    "remedy", "opening failed", when_to_use="opening the oven failed", steps=("unlock oven",), repairs="precondition"
)


def reject(library, item):
    """The reason for which an item is rejected; nothing of it is kept, and no id is given back."""
    held = len(library.items.find(status=None))
    admission = library.add(item)
    assert (admission.status, admission.item_id, len(library.items.find(status=None))) == ("rejected", None, held)
    return admission.reason


@pytest.mark.parametrize("phrase", GENERIC)
def test_generic_advice_is_rejected(library, phrase):
    """systems.md §3: the curator rejects generic entries."""
    assert reject(library, Item("insight", phrase.capitalize())).startswith("too generic")


@pytest.mark.parametrize(
    "text", ["Be careful!", "Always double-check and be careful", "Don't give up: try again, try harder"]
)
def test_several_phrases_are_not_more_specific(library, text):
    assert reject(library, Item("warning", text)).startswith("too generic")


def test_a_generic_phrase_in_something_specific_is_admitted(library):
    """It names the thing, and when."""
    said = "Be careful with the glass vase on the narrow shelf: it breaks when taken"
    assert library.add(Item("warning", said)).status == "added"


@pytest.mark.parametrize(
    ("kind", "fields", "lacks"),
    [
        ("skill", {"steps": ()}, "a skill needs steps"),
        ("skill", {"steps": ("a",), "condition": {"text": "x"}}, "verification"),
        ("remedy", {"steps": ("a",)}, "the failure that it repairs"),
        ("insight", {"source": "model", "provenance": ()}, "no evidence"),
    ],
)
def test_a_program_must_give_all_that_its_kind_needs(library, kind, fields, lacks):
    """systems.md §3: accept iff schema, match, executable, specific, no conflict."""
    assert lacks in reject(library, made(kind, "open the oven door", **fields))


def test_a_person_may_leave_parts_open(library):
    """A note in prose is worth keeping."""
    assert library.add(Item("skill", "how to open the oven")).status == "added"


def test_a_remedy_that_conflicts_with_a_sure_one_is_rejected(library):
    """systems.md §3: same failure, trigger overlap of at least 0.5, other content, incumbent of at least 0.8."""
    first = library.add(made("remedy", REMEDY.title, **_parts(REMEDY), confidence=0.9)).item_id
    rival = made("remedy", "the oven door", **{**_parts(REMEDY), "steps": ("kick oven",)})
    assert reject(library, rival).startswith(f"conflicts with {first}")


def test_an_unsure_incumbent_gives_way(library):
    library.add(made("remedy", REMEDY.title, **_parts(REMEDY), confidence=0.5))
    rival = made("remedy", "the oven door", **{**_parts(REMEDY), "steps": ("kick oven",)})
    assert library.add(rival).status == "added"


def _parts(item):
    return {"when_to_use": item.when_to_use, "steps": item.steps, "repairs": item.repairs}


def test_a_skill_against_a_guardrail_is_rejected(library):
    """Under the same condition a sure guardrail forbids one of its actions."""
    ref = library.add(GUARDRAIL).item_id
    skill = made(
        "skill", "make light", condition={"text": "gas"}, steps=("fetch lamp", "light lamp"), verify={"text": "lit"}
    )
    assert reject(library, skill).startswith(f"conflicts with {ref}")


def test_the_opposite_of_what_is_sure_is_rejected(library):
    library.add(Item("insight", "the red lever opens the cellar gate", confidence=0.9))
    assert "says the opposite" in reject(library, Item("insight", "the red lever never opens the cellar gate"))


def test_near_duplicates_merge_and_unite_evidence(library):
    """systems.md §3: duplicates merge with united evidence; §1: not novel above 0.85."""
    said = "the spoon lies in the wooden drawer beside the old sink of the kitchen"
    first = library.add(Item("insight", said, provenance=(1, 2))).item_id
    again = library.add(Item("insight", f"so {said}", provenance=(2, 3)))
    assert (again.status, again.item_id, library.items.get(first).provenance) == ("merged", first, (1, 2, 3))


def test_what_is_not_novel_raises_the_score_of_an_unused_item(library):
    """SLEA-RL: a better copy lifts the one that is there."""
    first = library.add(Item("insight", "spoons lie in drawers", score=0.4)).item_id
    library.add(Item("insight", "spoons lie in drawers", score=0.7, writer="chat:x"))
    assert library.items.get(first).score == 0.7


def test_a_claim_does_not_raise_what_was_earned(library, episode):
    """Once used, an item's score is its own: adding a copy with a high score changes nothing."""
    first = library.add(Item("insight", "spoons lie in drawers", score=0.6)).item_id
    run = episode("open drawer", success=False)
    library.record(_shown(run, first))
    earned = library.items.get(first).score
    library.add(Item("insight", "spoons lie in drawers", score=1.0, writer="chat:x"))
    assert library.items.get(first).score == earned < 0.6


def _shown(run, ref):
    from dataclasses import replace

    return replace(run, arm="retrieved", steps=tuple(replace(s, why={"recalled": [ref]}) for s in run.steps))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("open the red door with the key from the hall table", "open the bed door with the key from the hall table"),
        ("room 3 is locked in the morning and open at night", "room 4 is locked in the morning and open at night"),
        (
            "take the lift to the cellar when the gate is shut",
            "never take the lift to the cellar when the gate is shut",
        ),
    ],
)
def test_other_findings_are_not_duplicates(one, other):
    """One letter, one number, one word can be all the news there is."""
    assert not says_the_same(Item("insight", one), Item("insight", other))


TASK = "Pick up the things that lie about in the house, and put each of them into the place where it belongs."


def test_short_lessons_of_one_long_task_are_not_duplicates(library):
    """The words of the task are the same in all of them, and say nothing about the lesson."""
    texts = ("take coat: rewarded", "put coat in closet: rewarded", "put milk in fridge: rewarded")
    lessons = [Item("insight", text, when_to_use=TASK) for text in texts]
    assert [library.add(lesson).status for lesson in lessons] == ["added"] * 3
    again = library.add(Item("insight", "Put milk in fridge: rewarded!", when_to_use=TASK))
    assert again.status == "merged"
    assert library.items.get(again.item_id).title == texts[2]
    elsewhere = "When the family moves into another house and everything is still in boxes, unpack these first."
    assert not says_the_same(lessons[0], Item("insight", texts[0], when_to_use=elsewhere))


def test_a_near_duplicate_is_found_among_many_lessons_of_one_task(library):
    """The words of the task find all of them alike, so those of the lesson are searched for."""
    task = "Distribute scattered belongings throughout neighboring apartments, photographing everything afterwards."
    for thing in ("coat", "lamp", "ball", "book", "rope", "vase", "tape", "soap", "cork", "dish", "mask", "tent"):
        library.add(Item("insight", f"the {thing} goes on the shelf beside the {thing} hook", when_to_use=task))
    first = library.add(Item("insight", "always put the cold fresh milk in the kitchen fridge", when_to_use=task))
    again = library.add(Item("insight", "always put the cold fresh milk back in the kitchen fridge", when_to_use=task))
    assert (again.status, again.item_id) == ("merged", first.item_id)


def test_a_lesson_does_not_contradict_another_one_of_its_task(library):
    """Only what the two say is compared, not the words of their task."""
    task = f"{TASK} Open closed containers first, close drawers afterwards, and finish within twenty minutes."
    firm = Item("insight", "wash the coat", when_to_use=task, confidence=0.9)
    assert library.add(firm).status == "added"
    assert library.add(Item("insight", "never wash the milk", when_to_use=task)).status == "added"
    assert library.add(Item("insight", "never wash the coat", when_to_use=task)).status == "rejected"


def test_fifty_candidates_and_a_limit_of_ten_add_exactly_ten(library, episode):
    """systems.md §1: the rate limit is exact, for strategies and for warnings (at most 5)."""
    from hardwon.memory.learning.rule_mining import RATE_LIMITS

    for n in range(50):
        for _ in range(9):
            library.record(_failing(episode, f"eat thing{chr(97 + n % 26)}{chr(97 + n // 26)}"))
    report = library.evolve()
    added = [library.items.get(a.item_id).kind for a in report.admissions if a.status == "added"]
    assert report.candidates >= 50
    assert all(added.count(kind) <= limit for kind, limit in RATE_LIMITS.items())
    assert added.count("guardrail") == RATE_LIMITS["guardrail"]


def _failing(episode, action):
    from dataclasses import replace

    from hardwon.memory import Diagnosis, Failure

    run = episode(action, success=False)
    judged = Diagnosis(False, Failure.NO_EFFECT)
    keys = ("*", action, f"! {action} @ around 1: raw")
    return replace(run, steps=tuple(replace(step, diagnosis=judged, keys=keys) for step in run.steps))


def test_a_warning_becomes_a_guardrail_only_when_it_is_checkable_and_sure(library):
    """systems.md §7.2: a guardrail below confidence 0.6 forbids nothing; above, the warning retires into it."""
    warning = library.add(made("warning", "lighting fails", condition={"text": "gas"}, forbids="light {1}")).item_id
    state = State("It smells of gas.")
    unsure = made("guardrail", "no fire?", condition={"text": "gas"}, forbids="light {1}", confidence=0.59)
    library.add(unsure)
    assert library.check(state, "light match").allowed
    assert library.items.get(warning).status == "active"
    sure = library.add(GUARDRAIL).item_id
    assert not library.check(state, "light match").allowed
    assert library.items.history(warning)[-1]["detail"] == {"why": f"became guardrail {sure}"}


class Refuses:
    """A gate that likes nothing long."""

    def decide(self, candidate, similar):
        return len(candidate.title) < 20, 0.25, "too long"


def test_a_learned_gate_is_asked_after_the_rules(library):
    """systems.md §7.2: rules, then the optional gate, then score and capacity."""
    library.items.gate = Refuses()
    assert (
        library.add(Item("insight", "short and to the point, is it not?")).reason
        == "the gate refused it (0.25): too long"
    )
    assert library.add(Item("insight", "spoons in drawers")).status == "added"


def test_the_weakest_by_score_and_recency_goes_first(library, episode, monkeypatch):
    """Eviction: an old unused item goes before a fresh one that scores a little less."""
    monkeypatch.setattr("hardwon.memory.learning.curator.TUNING", replace(TUNING, capacity=2))
    monkeypatch.setattr("hardwon.memory.learning.curator.STRENGTH", "score / (1.0 + max(0, ? - fresh) / 2.0)")
    old = library.add(Item("insight", "an old finding about spoons", score=0.6)).item_id
    for _ in range(6):
        library.record(episode())
    library.add(Item("insight", "a fresh finding about forks", score=0.5))
    assert library.add(Item("insight", "a third finding about knives", score=0.5)).status == "replaced"
    assert library.items.get(old).status == "retired"


def test_an_item_outlives_its_time_only_with_new_evidence(library, episode):
    """ttl: episodes without evidence or use; the history says why it went."""
    ref = library.add(Item("warning", "the drawer sticks", ttl=3)).item_id
    for _ in range(3):
        library.record(episode())
        library.evolve()
    library.add(Item("warning", "the drawer sticks", provenance=(1,)))
    for _ in range(3):
        library.record(episode())
        library.evolve()
    assert library.items.get(ref).status == "active"
    library.record(episode())
    assert ref in library.evolve().retired
    assert "time to live" in library.items.history(ref)[-1]["detail"]["why"]


def test_a_pinned_item_does_not_expire(library, episode):
    ref = library.add(Item("warning", "the drawer sticks", ttl=1)).item_id
    library.items.update(ref, pinned=True)
    for _ in range(5):
        library.record(episode())
    library.evolve()
    assert library.items.get(ref).status == "active"


def test_undo_takes_back_one_change_after_another(library):
    """And not the score, which was earned."""
    ref = library.add(Item("insight", "one")).item_id
    library.items.update(ref, title="two")
    library.items.update(ref, title="three", score=0.9)
    assert library.items.undo(ref).title == "two"
    assert (library.items.undo(ref).title, library.items.get(ref).score) == ("one", 0.9)
    with pytest.raises(ConfigError, match="no earlier version"):
        library.items.undo(ref)


def test_undo_brings_back_what_was_retired(library):
    """Into every index as well."""
    state = State("You see a wooden drawer.")
    ref = library.add(Item("insight", "drawer", signatures=(state.signature,))).item_id
    library.items.retire(ref, "mistaken")
    assert not library.recall(state).items
    library.items.undo(ref)
    assert [hit.what.id for hit in library.recall(state).items] == [ref]


def test_a_person_s_wording_is_not_overwritten_by_the_rules(library):
    """Who words it anew is its writer; evidence is still united."""
    ref = library.add(made("warning", "the oven sticks", body="failed 8 of 9 times")).item_id
    library.items.update(ref, body="Pull twice.")
    library.add(made("warning", "the oven sticks", body="failed 9 of 10 times", provenance=(9,)))
    assert (library.items.get(ref).body, library.items.get(ref).provenance, library.items.get(ref).writer) == (
        "Pull twice.",
        (1, 9),
        "user",
    )


def test_what_rules_made_is_enforced_only_as_recorded(library):
    """A changed field that is none is refused with what can be changed."""
    ref = library.add(SKILL).item_id
    with pytest.raises(ConfigError, match="'kind' of an item cannot be changed"):
        library.items.update(ref, kind="warning")
    with pytest.raises(ConfigError, match="ttl is 0"):
        library.items.update(ref, ttl=0)


def test_indices_agree_and_removal_clears_all(library):
    """systems.md §3: signature, place and tag queries return the same item; removing it clears all three."""
    item = made(
        "skill",
        "brew tea",
        condition={"text": "kettle"},
        steps=("fill kettle", "boil water"),
        verify={"text": "tea"},
        signatures=("s1",),
        locations=("kitchen",),
        tags=("tea",),
    )
    ref = library.add(item).item_id
    where = [
        {"signature": "s1"},
        {"location": "kitchen"},
        {"tag": "tea"},
        {"tag": "boil"},
        {"tag": "water"},
        {"text": "tea"},
    ]
    assert [[one.id for one in library.items.find(**by)] for by in where] == [[ref]] * len(where)
    library.items.retire(ref, "cold")
    assert [library.items.find(**by) for by in where] == [[]] * len(where)
    assert library.admin.verify() == []


def test_a_stranger_cannot_flood_the_quarantine(library, monkeypatch):
    monkeypatch.setattr("hardwon.memory.learning.curator.TUNING", replace(TUNING, quarantine_capacity=2))
    said = ["spoons in drawers", "forks on shelves", "knives in boxes"]
    statuses = [library.add(Item("insight", title, trust="untrusted")).status for title in said]
    assert statuses == ["added", "added", "rejected"]


def test_an_item_counts_half_after_its_half_life_without_use(library):
    """Decay as shipped: score / (1 + age / HALF_LIFE); after one half-life 0.6 counts 0.3, less than a fresh 0.4."""
    library.add(Item("insight", "an old finding about spoons", score=0.6))
    fresh = library.add(Item("insight", "a fresh finding about forks", score=0.4)).item_id
    connection = library._file.store.connection
    connection.execute("UPDATE items SET fresh = ? WHERE id = ?", (TUNING.half_life, fresh))

    def strengths(clock: int) -> list[float]:
        rows = connection.execute(f"SELECT {STRENGTH} FROM items ORDER BY score", (clock,))
        return [strength for (strength,) in rows]

    assert strengths(0) == pytest.approx([0.4, 0.6])
    assert strengths(TUNING.half_life) == pytest.approx([0.4, 0.3])


@pytest.mark.parametrize("title", ["Be careful", "Try again!"])
def test_a_rewrite_needs_what_a_new_item_needs(library, title):
    """A generic phrase does not replace a lesson."""
    reason = reject(library, Item("insight", title))
    ref = library.add(Item("insight", "the red door opens outward")).item_id
    admission = library.items.merge([ref], Item("insight", title))
    assert (admission.status, admission.reason) == ("rejected", reason)
    assert library.items.get(ref).title == "the red door opens outward"
