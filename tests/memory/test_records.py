from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hardwon.memory import (
    Diagnosis,
    ExperienceLibrary,
    Failure,
    HardwonError,
    Item,
    Recollection,
    State,
    Step,
    Trajectory,
)
from hardwon.memory.errors import ConfigError
from hardwon.memory.privacy.redaction import redact
from hardwon.memory.records.episodes import with_worth

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda text: redact(text) == text)
values = (
    words
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(-1000, 1000, width=16)
    | st.booleans()
    | st.lists(words, max_size=3)
)
states = st.builds(
    State,
    observation=words,
    facts=st.dictionaries(words, values, max_size=3),
    location=words,
    task=words,
    feedback=words,
    notes=st.lists(words, max_size=3),
)
diagnoses = st.builds(
    Diagnosis,
    success=st.booleans(),
    failure=st.sampled_from(Failure),
    progress=st.floats(0, 1),
    stagnant=st.booleans(),
    loop=st.booleans(),
    diff=st.dictionaries(words, values, max_size=2),
    evidence=words,
)
finite = st.floats(-1e6, 1e6)
steps = st.builds(
    Step,
    states,
    words,
    states,
    diagnoses,
    reward=finite,
    keys=st.lists(words, min_size=1, max_size=3, unique=True),
    why=st.dictionaries(
        words.filter(lambda name: name not in ("trajectory", "recalled", "blocked")), values, max_size=2
    ),
)
trajectories = st.builds(
    Trajectory,
    task=words,
    steps=st.lists(steps, max_size=3),
    success=st.booleans(),
    score=finite,
    arm=words,
    seed=st.integers(-(2**63), 2**63 - 1),
    ending=words,
    meta=st.dictionaries(words, values, max_size=2),
)


def told(step):
    """What a step says, without what the library adds."""
    why = step.why.to_dict(with_trajectory=False)
    return step.pre, step.action, step.post, step.diagnosis, step.reward, step.t, step.keys, why, step.return_to_go


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trajectories)
def test_an_episode_comes_back_as_it_was(library, trajectory):
    """Whatever text, numbers and lists it holds: nothing is lost, rounded or reordered."""
    back = library.episodes.get(library.record(trajectory))
    worth = with_worth(trajectory) if trajectory.success else trajectory
    returns = zip(worth.steps, worth.learned_returns(), strict=True)
    steps = [replace(step, t=t, return_to_go=one) for t, (step, one) in enumerate(returns)]
    given = replace(trajectory, steps=steps)
    assert [told(step) for step in back.steps] == [told(step) for step in given.steps]
    fields = ("task", "success", "score", "arm", "seed", "ending", "meta")
    assert [getattr(back, name) for name in fields] == [getattr(given, name) for name in fields]


def test_half_a_character_is_kept_as_its_escape(library):
    """Half a surrogate pair cannot be stored; the episode is kept, and two file names that differ in it stay two."""
    step = Step(State("a \ud800", {"x": "\udfff"}), "eat \ud800", State("b"), Diagnosis(True), keys=("eat \ud800",))
    back = library.episodes.get(library.record(Trajectory("t \ud800", (step,), True)))
    assert (back.task, back.steps[0].action, back.steps[0].pre.observation) == (
        "t \\ud800", "eat \\ud800", "a \\ud800"
    )  # fmt: skip
    other = State("a \udc80", task="t")
    ref = library.record(Trajectory("t", (Step(other, "eat \udc80", State("c"), Diagnosis(True)),), True))
    assert library.episodes.get(ref).steps[0].action == "eat \\udc80"
    assert library.episodes.get(ref).steps[0].pre.observation == "a \\udc80"
    assert library.admin.verify() == []


def test_a_field_that_is_missing_is_refused():
    """A step has a state before and after, or it is none."""
    with pytest.raises(TypeError, match="post"):
        Step(State("x"), "open", diagnosis=Diagnosis(True))  # type: ignore[call-arg]


def test_records_cannot_be_changed():
    """What happened, happened."""
    with pytest.raises(AttributeError):
        State("x").observation = "y"  # type: ignore[misc]


def test_lists_are_taken_as_tuples():
    """What comes out of JSON or a checkpoint equals what went in."""
    assert State("x", notes=["a"]) == State("x", notes=("a",))  # type: ignore[arg-type]
    assert State("x", {"has": ("a",)}) == State("x", {"has": ["a"]})  # type: ignore[dict-item]
    assert Item("insight", "x", provenance=[1]) == Item("insight", "x", provenance=(1,))  # type: ignore[arg-type]


def test_returns_are_discounted_sums():
    """G_t = r_t + discount G_{t+1}, by hand."""
    steps = tuple(Step(State("x"), "a", State("x"), Diagnosis(True), reward) for reward in (0.25, 0.0, 0.5))
    assert Trajectory("", steps, True).learned_returns(0.5) == [0.375, 0.25, 0.5]


def test_a_call_that_works_at_its_second_attempt_is_worth_nothing_at_its_first():
    def step(action, failure, reward=0.0):
        return Step(State("x"), action, State("y"), Diagnosis(failure is Failure.NONE, failure), reward)

    refund, verify = "refund(order=A-1)", "verify(customer=Ada)"
    steps = (step(refund, Failure.TOOL_ERROR), step(verify, Failure.NONE), step(refund, Failure.NONE, 1.0))
    assert Trajectory("", steps, True).learned_returns(0.5) == [0.0, 0.5, 1.0]
    # Another call, a call that never worked, and a failure of a game keep the return of what followed.
    others = (step("find()", Failure.TOOL_ERROR), step(refund, Failure.NO_EFFECT), *steps[1:])
    assert Trajectory("", others, True).learned_returns(0.5) == [0.125, 0.25, 0.5, 1.0]


def test_an_episode_without_steps_has_no_returns():
    """Nothing was done, nothing came of it."""
    assert Trajectory("", (), True).learned_returns() == []
    assert Trajectory("", (), True).total_reward == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "hint"}, "item kind is 'hint'; use one of strategy, warning"),
        ({"title": "  "}, "the item has no title; give one sentence"),
        ({"kind": "guardrail"}, "is incomplete; give `condition` and `forbids`"),
        ({"kind": "guardrail", "condition": {"text": "x"}}, "is incomplete; give `condition` and `forbids`"),
        ({"score": 1.5}, r"item score is 1.5; give a number in \[0, 1\]"),
        ({"confidence": float("nan")}, r"item confidence is nan; give a number in \[0, 1\]"),
    ],
)
def test_an_item_that_cannot_be_says_why(fields, words):
    """The message has the value and what would do."""
    with pytest.raises(ConfigError, match=words):
        Item(**{"kind": "insight", "title": "x", **fields})


def test_errors_are_ours_and_the_standard_library_s():
    """One `except` for all of ours, the usual one for the kind."""
    assert issubclass(ConfigError, HardwonError)
    assert issubclass(ConfigError, ValueError)


def test_an_empty_recollection_is_false():
    """Nothing recalled reads as nothing."""
    assert not Recollection()
    assert Recollection(guardrails=(Item("guardrail", "x", condition={"text": "x"}, forbids="eat"),))


def test_an_items_text_is_what_it_says():
    """Title, when to use and body; empty parts leave no line."""
    assert Item("insight", "a", body="c", when_to_use="b").text == "a\nb\nc"
    assert Item("insight", "a").text == "a"


def test_a_number_beyond_64_bits_is_refused_clearly(library):
    """SQLite's whole numbers end there."""
    with pytest.raises(HardwonError, match="beyond 64 bits"):
        library.record(Trajectory("x", (), True, seed=2**80))
    assert isinstance(library, ExperienceLibrary)
    assert library.episodes.count() == 0


@pytest.mark.parametrize(
    "fields",
    [{"body": 3}, {"granularity": "plan"}, {"scope": "all"}, {"source": "rumour"}, {"trust": "some"}, {"ttl": 0}],
)
def test_an_item_refuses_what_no_field_of_it_can_be(fields):
    """The message names the value seen."""
    with pytest.raises(ConfigError, match=str(next(iter(fields.values())))):
        Item("insight", "x", **fields)


def test_an_outcome_of_all_steps_alike_is_not_discounted():
    """`meta["discount"]` replaces the discount, where it is a number that can be one."""
    steps = tuple(Step(State("a"), "go", State("b"), Diagnosis(True), float(n == 2), n) for n in range(3))
    assert Trajectory("t", steps, True, meta={"discount": 1.0}).learned_returns() == [1.0, 1.0, 1.0]
    for odd in (2.0, -1, "1", None, float("nan")):
        assert Trajectory("t", steps, True, meta={"discount": odd}).learned_returns(0.5) == [0.25, 0.5, 1.0]
