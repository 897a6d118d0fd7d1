"""Trace advice through the library: why an agent was told something, or why it was not.

Advice passes five stages. The first that fails is the answer, and each names its evidence:

    recorded    the library has a lesson or a step about it
    indexed     it is in use, and was so when the episode was recorded
    recalled    it fits the situation
    shown       it was in the hint that the agent read, or a guardrail acted
    followed    the agent did what it says
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hardwon.memory.errors import UnknownName
from hardwon.memory.guardrails.traits import find_trait_clause, has_trait
from hardwon.memory.library import ExperienceLibrary
from hardwon.memory.reasons import ADVICE
from hardwon.memory.records import Failure, Item, Step, Trajectory
from hardwon.memory.situations.actions import is_of
from hardwon.memory.situations.titles import is_for_failures, list_steps

DEEP = 50
"""Number of hits among which the rank of a lesson is looked for."""
NAMED = 5
"""Largest number of steps that a stage names."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage that advice passes."""

    name: str
    passed: bool | None
    """Whether it passed; None if that is unknown."""
    evidence: str


@dataclass(frozen=True, slots=True)
class AdviceTrace:
    """How far advice came in one episode."""

    item: str
    """Id of the lesson; empty if it is about recorded steps."""
    title: str
    episode: str
    stages: tuple[Stage, ...]
    """The stages up to the first that was not passed."""

    @property
    def says(self) -> str:
        """Return the answer as a sentence."""
        last = self.stages[-1]
        if last.passed is False:
            return f"Not {last.name}: {last.evidence}."
        return f"{last.name.capitalize()}: {last.evidence}."


def trace_advice(library: ExperienceLibrary, about: str, episode: Trajectory) -> AdviceTrace:
    """Return how far a lesson came in an episode.

    Args:
        library: The library.
        about: The id of an item or its beginning, or words of a lesson or an action.
        episode: The recorded episode in which it was or was not told.
    """
    item = _find_item(library.items.find(status=None), about)
    if item is None:
        return AdviceTrace("", about, episode.id, tuple(_trace_steps(library, about, episode)))
    return AdviceTrace(item.id, item.title, episode.id, tuple(_trace_item(library, item, episode)))


def _trace_item(library: ExperienceLibrary, item: Item, episode: Trajectory) -> Iterator[Stage]:
    """Yield the stages of a lesson up to the first that was not passed."""
    checks: tuple[Callable[[], Stage], ...] = (
        lambda: _check_recorded(item),
        lambda: _check_indexed(library, item, episode),
        lambda: _check_recalled(library, item, episode.steps),
        lambda: _check_shown(item, episode.steps),
        lambda: _check_followed(item, episode.steps),
    )
    for check in checks:
        stage = check()
        yield stage
        if stage.passed is False:
            return


def _trace_steps(library: ExperienceLibrary, about: str, episode: Trajectory) -> Iterator[Stage]:
    """Yield the stages of recorded steps of which no lesson was made."""
    hits = [hit.what for hit in library.search(about, DEEP) if isinstance(hit.what, Step)]
    begin = min((step.id for step in episode.steps if step.id is not None), default=0)
    earlier = {step.id: step for step in hits if step.id is not None and step.id < begin and _has_words(step, about)}
    if not earlier:
        yield Stage("recorded", False, f"no lesson and no step before this episode has the words {about!r}")
        return
    failed = sum(not step.diagnosis.success for step in earlier.values())
    yield Stage("recorded", True, f"{_name_steps(sorted(earlier))}; {failed} of {len(earlier)} failed")
    yield Stage("indexed", True, "as steps; no lesson was made of them, since a rule needs repeated evidence")
    reader = next((step for step in episode.steps if earlier.keys() & set(step.why.similar or ())), None)
    ranks = [
        (rank, step.t)
        for step in episode.steps
        for rank, hit in enumerate(library.recall(step.pre, k=DEEP).steps, 1)
        if isinstance(hit.what, Step) and hit.what.id in earlier
    ]
    if reader is None and not ranks:
        yield Stage("recalled", False, f"none of the {len(episode.steps)} situations of the episode is like theirs")
        return
    yield Stage(
        "recalled",
        True,
        f"they match step {reader.t}" if reader else "they match step {1} now, at rank {0}".format(*min(ranks)),
    )
    if reader is None:
        yield _explain_not_shown(episode.steps)
        return
    yield Stage("shown", True, f"the agent read it before step {reader.t}")
    actions = {step.action for step in earlier.values()}
    later = (step for step in episode.steps[reader.t :] if step.diagnosis.failure is not Failure.BLOCKED)
    done = next((step for step in later if step.action in actions), None)
    outcome = f"did `{done.action}`, which {_describe_result(done)}" if done else f"did `{reader.action}` instead"
    yield Stage("followed", done is not None, f"the agent {outcome}")


def _says(text: str, about: str) -> bool:
    """Return whether a text has all the words, in any order: nobody remembers the exact ones."""
    return all(word in text.casefold() for word in about.casefold().split())


def _has_words(step: Step, about: str) -> bool:
    return _says(f"{step.action}\n{step.pre.observation}\n{step.diagnosis.evidence}", about)


def _describe_result(step: Step) -> str:
    return "worked" if step.diagnosis.success else "failed"


def _find_item(items: Sequence[Item], about: str) -> Item | None:
    """Return the item with an id, or the best one with these words, in a row or in use before others."""
    wanted = about.strip().casefold()
    if not wanted:
        raise UnknownName("nothing is named; give the id of a lesson, or words of a lesson or an action.")
    named = [item for item in items if item.id.startswith(about.strip())]
    if len(named) == 1:
        return named[0]
    texts = {item.id: f"{item.title}\n{item.body}\n{item.forbids}\n{item.steps}".casefold() for item in items}
    named = [item for item in items if _says(texts[item.id], about)]
    return max(named, key=lambda item: (wanted in texts[item.id], item.status == "active", item.score), default=None)


def _check_recorded(item: Item) -> Stage:
    if not item.provenance:
        return Stage("recorded", True, f"added by {item.writer}, without steps as evidence")
    return Stage("recorded", True, f"made by {item.writer} from {_name_steps(item.provenance)}")


def _check_indexed(library: ExperienceLibrary, item: Item, episode: Trajectory) -> Stage:
    changes = library.items.history(item.id)
    added = str(changes[0]["at"]) if changes else ""
    at = str(library.episodes.find([episode.id])[0]["recorded_at"])
    # Times have seconds, and later evidence may include this episode: what took part in it was in use.
    if any(item.id in _list_used(step) for step in episode.steps):
        return Stage("indexed", True, f"in use since {added}; now {item.status}, score {item.score:.2f}")
    if added > at or (added == at and {step.id for step in episode.steps} & set(item.provenance)):
        now = "" if item.status == "active" else f"; now it is {item.status}"
        return Stage("indexed", False, f"it was learned at {added}, and the episode was recorded at {at}{now}")
    if item.status != "active":
        return Stage("indexed", False, f"its status is {item.status}, since {changes[-1]['at']}")
    return Stage("indexed", True, f"in use since {added}, score {item.score:.2f}")


def _check_recalled(library: ExperienceLibrary, item: Item, steps: Sequence[Step]) -> Stage:
    for step in steps:
        if item.id in _list_used(step):
            return Stage("recalled", True, f"it matched step {step.t}")
    rank = {step.t: at for step in steps if (at := _find_rank(library, item, step))}
    if rank:
        t, best = min(rank.items(), key=lambda pair: pair[1])
        return Stage("recalled", True, f"it matches step {t} now, at rank {best}")
    if any(ADVICE in (step.why.masked or ()) or item.id in library.recall(step.pre).masked for step in steps):
        return Stage("recalled", False, "it made outcomes worse in this kind of task, so it is left out")
    condition = " Its condition does not hold in any of them" if item.condition else ""
    return Stage(
        "recalled", False, f"it matches none of the {len(steps)} situations of the episode.{condition}".rstrip(".")
    )


def _find_rank(library: ExperienceLibrary, item: Item, step: Step) -> int:
    """Return the rank of an item in a situation; 0 if it does not fit."""
    if item.kind == "guardrail":
        return int(item.id in library.check(step.pre, step.action).items)
    ids = [hit.what.id for hit in library.recall(step.pre, k=DEEP).items]
    return ids.index(item.id) + 1 if item.id in ids else 0


def _list_used(step: Step) -> tuple[str, ...]:
    """Return the items that took part in a step, shown or not."""
    why = step.why
    groups = (why.recalled, why.withheld, why.masked, why.blocked, why.overridden, why.skills)
    return tuple(ref for ids in groups for ref in ids or ())


def _check_shown(item: Item, steps: Sequence[Step]) -> Stage:
    for step in steps:
        why = step.why
        if item.id in (*(why.blocked or ()), *(why.overridden or ())):
            return Stage("shown", True, f"as a guardrail, it acted on `{step.action}` at step {step.t}")
        if item.id in (*(why.recalled or ()), *(why.skills or ())):
            return Stage("shown", True, f"the agent read it before step {step.t}")
    if item.kind == "guardrail":
        call = list_steps([item.forbids or ""])
        return Stage("shown", False, f"the agent did not try {call}, or the guardrail did not hold at that time")
    return _explain_not_shown(steps, item.id)


def _explain_not_shown(steps: Sequence[Step], item_id: str = "") -> Stage:
    """Say why something that fits was not in a hint."""
    if any(step.why.advice == "withheld" for step in steps):
        return Stage("shown", False, "all advice was withheld in this episode at random, to measure whether it helps")
    if any(item_id in (step.why.withheld or ()) for step in steps):
        return Stage("shown", False, "it was withheld in this episode at random, to measure whether it helps")
    if all(step.why.recalled is None for step in steps):
        return Stage("shown", False, "the agent read no hint in this episode")
    return Stage("shown", False, "other lessons and steps took its place in the hint")


def _check_followed(item: Item, steps: Sequence[Step]) -> Stage:
    advised = tuple(pattern for pattern in item.steps if pattern)
    start = next(at for at, step in enumerate(steps) if item.id in _list_used(step))
    for at, step in enumerate(steps[start:], start):
        done = f"`{step.action}` at step {step.t}, which {_describe_result(step)}"
        if item.id in (step.why.blocked or ()):
            return Stage("followed", True, f"`{step.action}` was refused and not run")
        if step.diagnosis.failure is Failure.BLOCKED:  # another guardrail refused it, so the agent did not do it
            continue
        if advised == (item.forbids,) and is_of(advised[0], step.action):  # it is about a value of the call
            clause = find_trait_clause(item.title)
            passed = has_trait(clause, step.action) if clause and '" if ' not in clause else None
            return Stage("followed", passed, f"the agent did {done}")
        if item.forbids and is_of(item.forbids, step.action) and not is_for_failures(item.title):
            return Stage("followed", False, f"the agent did {done}")
        if any(is_of(pattern, step.action) for pattern in advised):
            is_begun = any(is_of(advised[0], earlier.action) for earlier in steps[: at + 1])
            skipped = "" if is_begun else f", and not {list_steps(advised[:1])} first"
            return Stage("followed", is_begun, f"the agent did {done}{skipped}")
    if advised:
        return Stage("followed", False, f"the agent did not do {list_steps(advised[:1])}")
    if item.forbids:
        return Stage("followed", True, f"the agent did not do {list_steps([item.forbids])}")
    return Stage("followed", None, f"its words name no action; the agent did `{steps[start].action}`")


def _name_steps(ids: Iterable[int]) -> str:
    """Return the references of steps, a few of many."""
    refs = [f"step:{ref}" for ref in ids]
    more = f" and {len(refs) - NAMED} more" if len(refs) > NAMED else ""
    return ", ".join(refs[:NAMED]) + more
