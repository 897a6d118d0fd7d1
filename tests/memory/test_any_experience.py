"""Whatever an environment says and an agent does, it can be learnt from: no text breaks the library."""

from hypothesis import given, strategies as st

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory
from hardwon.memory.situations.describe import condition_words, key_words
from hardwon.memory.storage.counted import STRUCTURAL_AFTER

PARTS = [
    "eat",
    "cook",
    "potato",
    "raw",
    "in",
    "to",
    "@",
    "|",
    "!",
    "{1}",
    "{2}",
    "1:",
    "told",
    "mark",
    "around",
    ".",
    "'",
    "(",
    ")",
    "=",
    "tool(of=",
    "日本",
    "%",
    "_",
    "*",
    "-",
    "AND",
    "12",
]
fragments = st.sampled_from([*PARTS, " @ ", " | ", "! ", "; ", "\n", '"', "\ud800", "\x00"])
texts = st.lists(fragments, max_size=6).map(" ".join) | st.lists(fragments, max_size=4).map("".join)
facts = st.dictionaries(
    texts, texts | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.lists(texts, max_size=3), max_size=3
)
states = st.builds(State, texts, facts, task=st.just("t"), feedback=texts, notes=st.lists(texts, max_size=3))
labels = st.sampled_from([Failure.NONE, Failure.PENALTY, Failure.TASK_LOST])


@given(st.lists(st.tuples(states, texts, states), min_size=1, max_size=3), labels)
def test_any_text_can_be_learnt_from(steps, failure):
    """Recorded sixteen times, distilled, recalled, checked, searched for, said in words; and sound after it."""
    good = failure is Failure.NONE
    judged = Diagnosis(good, failure)
    with ExperienceLibrary.open(":memory:") as library:
        for _ in range(16):
            taken = (
                Step(pre, action, post, judged, good - 0.5, keys=library.episodes.keys(pre, action))
                for pre, action, post in steps
            )
            library.record(Trajectory("t", tuple(taken), good))
        library.evolve()
        for pre, action, post in steps:
            library.check(pre, action)
            n = library.recall(pre, actions={action: ""}).estimates[action].n
            # 0 where nothing tells which world this is; words that have become structural begin a closer description
            assert n == 0 or n >= 16 - STRUCTURAL_AFTER
            library.recall(post)
            library.search(action)
            assert all(key_words(key, action) for key in library.episodes.keys(pre, action))
        assert all(condition_words(item.condition, item.forbids or "") for item in library.items.find())
        assert library.admin.verify() == []
