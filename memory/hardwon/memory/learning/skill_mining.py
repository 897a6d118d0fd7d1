"""Skill mining: skills and remedies that recorded episodes justify (Steve-Evolving, arXiv:2603.13131).

A skill is a run of successful steps that ends with a gain. A remedy is a sequence of steps between the failure of an
action and its success. Runs of the same shape form one candidate: common arguments stay, different ones become holes
(least general generalization, Plotkin 1970). Preconditions and success checks are the facts that all runs have in
common before and after. A skill has no step that others did without: what is left out at no loss may be a detour, or
what an attacker had the agent do besides its task. It has no tool that only results named either: the agent reads them
anyway, and anybody may have written them. No model is involved.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from hardwon.memory.records import MIN_SKILL_STEPS, Admission, Failure, Item, State, Step, Trajectory
from hardwon.memory.situations.actions import bind, fill, parse_action, put_values
from hardwon.memory.situations.titles import fill_holes, remedy_title, skill_title
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.trust.testimony import REQUESTS

MAX_LENGTH = 8
"""Largest number of steps of a skill; of a longer run, the last ones are used."""
REPAIR_WITHIN = 4
"""Largest number of steps between a failure and the success of the same action."""
MOST_PREPARING = 3
"""Largest number of steps that `find_preparation` returns."""
SUPPORT = 2
"""Runs, and distinct episodes, that a shape needs before it is proposed."""
PRIOR = 2
"""Prior runs without a gain, which shrink the score of a skill with few runs towards 0.5."""
MAX_RUNS = 16
"""Largest number of runs of one shape that are compared, the newest ones."""
REPAIRABLE = frozenset([Failure.PRECONDITION, Failure.NO_EFFECT, Failure.INVALID_ACTION, Failure.TOOL_ERROR])
SkillShape = tuple[str, ...]
_HOLE = re.compile(r"\{(\d+)\}")


@dataclass(slots=True)
class StepRun:
    """Consecutive steps that form a unit."""

    actions: tuple[str, ...]
    before: State
    after: State
    ids: tuple[int, ...]
    gain: float


@dataclass(slots=True)
class SkillCandidate:
    """All runs of one shape."""

    n: int = 0
    """Number of their episodes, which `episodes` limits."""
    tried: int = 0
    """Number of episodes in which the steps were taken, whether they reached what they are for or not."""
    runs: list[StepRun] = field(default_factory=list)
    proposed: int = 0
    last: str = ""
    """The episode of the last run; episodes are read whole, one after another."""
    last_tried: str = ""
    episodes: set[str] = field(default_factory=set)
    """Up to MAX_RUNS episodes of the runs; a single episode justifies nothing."""

    def add(self, run: StepRun, episode: str) -> None:
        """Add a run, and drop the oldest beyond MAX_RUNS."""
        self.add_attempt(episode)
        self.n += episode != self.last
        self.last = episode
        if len(self.episodes) < MAX_RUNS:
            self.episodes.add(episode)
        self.runs.append(run)
        del self.runs[:-MAX_RUNS]

    def add_attempt(self, episode: str) -> None:
        """Count an episode in which the steps were taken."""
        self.tried += episode != self.last_tried
        self.last_tried = episode

    @property
    def due(self) -> bool:
        """Return whether the support doubled since the last proposal, and most attempts worked."""
        is_new = self.n >= max(SUPPORT, 2 * self.proposed) and len(self.episodes) >= SUPPORT
        return is_new and 2 * self.n > self.tried

    @property
    def gain(self) -> float:
        """Return the mean gain of the runs."""
        return sum(run.gain for run in self.runs) / len(self.runs)

    def replaces(self, longer: "SkillCandidate") -> bool:
        """Return whether these runs gained as much as longer ones from the same situation, in half as many episodes."""
        if len(self.episodes) < SUPPORT or 2 * self.n < longer.n or self.gain < longer.gain - 1e-9:
            return False
        starts = {run.before.signature for run in self.runs}
        return any(run.before.signature in starts for run in longer.runs)


class SkillMiner:
    """Collects runs from episodes, and proposes an item whenever the support of a shape has doubled."""

    def __init__(self) -> None:
        self._skills: dict[SkillShape, SkillCandidate] = {}
        self._remedies: dict[tuple[str, SkillShape], SkillCandidate] = {}
        self._outcomes: dict[str, tuple[float, int]] = {}
        """By task: the sum of the outcomes of its episodes, and their number."""
        self._chosen: Counter[str] = Counter()
        """By tool, the number of episodes in which the agent chose it before a result named it."""

    def read(self, trajectory: Trajectory) -> None:
        """Collect the runs of one recorded episode; skills come from successful episodes only.

        A graded episode is successful if its outcome is above 0 and no worse than the mean so far of its task.
        """
        if trajectory.success is None:  # the outcome is unknown, for example after an interruption
            return
        doubtful = self._find_doubtful(trajectory.steps)
        if self._is_successful(trajectory):
            for run in gains(trajectory.steps):  # single steps, too: they show which others are not needed
                if doubtful.isdisjoint(parse_action(action).verb for action in run.actions):
                    self._skills.setdefault(shape_of(run.actions), SkillCandidate()).add(run, trajectory.id)
        for failure, run, has_worked in repairs(trajectory.steps):
            candidate = self._remedies.setdefault((failure, shape_of(run.actions)), SkillCandidate())
            if has_worked:
                candidate.add(run, trajectory.id)
            else:
                candidate.add_attempt(trajectory.id)

    def _find_doubtful(self, steps: Sequence[Step]) -> set[str]:
        """Return the tools that results named first, and that few requests used before; count the other ones."""
        tools = {False: set[str](), True: set[str]()}
        for step in steps:
            verb = parse_action(step.action).verb
            tools[bool(step.why.copied) and verb.lower() in (step.why.copied or ())].add(verb)
        self._chosen.update(tools[False])
        return {verb for verb in tools[True] if self._chosen[verb] < REQUESTS}

    def _is_successful(self, trajectory: Trajectory) -> bool:
        """Return whether the gains of an episode are worth repeating, and count its outcome."""
        outcome = trajectory.outcome or 0.0
        total, n = self._outcomes.get(trajectory.task, (0.0, 0))
        self._outcomes[trajectory.task] = total, n = total + outcome, n + 1
        # No fixed limit: what is much in one task is little in another. A gain in an episode that ends below the usual
        # may have led into a dead end, like a reward in a failed one. A success is never below the mean.
        return outcome > 0.0 and outcome >= total / n - 1e-9  # sums of equal outcomes are rounded

    def candidates(self) -> Iterator[tuple[SkillCandidate, Item]]:
        """Yield the candidates that are due, the best supported first.

        Call `mark_submitted` on a candidate after its submission; otherwise it is proposed again.
        """
        due: list[tuple[SkillCandidate, Item]] = [
            (c, _build_skill(shape, c))
            for shape, c in self._skills.items()
            if c.due and len(shape) >= MIN_SKILL_STEPS and not self._find_shorter(shape)
        ]
        due += [(c, _build_remedy(*key, c)) for key, c in self._remedies.items() if c.due]
        yield from sorted(due, key=lambda pair: (-pair[0].n, pair[1].id))

    def find_padded(self, items: Iterable[Item]) -> Iterator[tuple[Item, str]]:
        """Yield the rule-made skills of which a part was enough, each with the reason."""
        for item in items:
            is_mined = item.kind == "skill" and item.writer == "rules"
            if is_mined and (shorter := self._find_shorter(shape_of(item.steps))):
                yield item, f"{len(shorter)} of its {len(item.steps)} steps gained as much without the others"

    def _find_shorter(self, shape: SkillShape) -> SkillShape:
        """Return the shape of a part of the steps that gained as much without the others; empty if there is none."""
        whole = self._skills.get(shape)
        parts = (part for length in range(1, len(shape)) for part in combinations(shape, length))
        return next((p for p in parts if whole and p in self._skills and self._skills[p].replaces(whole)), ())

    @staticmethod
    def mark_submitted(candidate: SkillCandidate, admission: Admission) -> None:
        """Record that a candidate was submitted to the curator, whatever the decision."""
        candidate.proposed = candidate.n


def shape_of(actions: Sequence[str]) -> SkillShape:
    """Return the templates of the actions, which runs of the same kind share."""
    return tuple(parse_action(action).template for action in actions)


def gains(steps: Sequence[Step]) -> Iterator[StepRun]:
    """Yield the maximal runs of successful steps that end with a reward, without loops."""
    run: list[Step] = []
    for step in steps:
        if not step.diagnosis.success or not step.action:
            run.clear()
            continue
        run.append(step)
        if step.reward > 0:
            kept = without_circles(run)[-MAX_LENGTH:]  # the end of a run is what earns the reward
            yield _run(kept, gain=sum(rewarded.reward for rewarded in run))
            run = []


def repairs(steps: Sequence[Step]) -> Iterator[tuple[str, StepRun, bool]]:
    """Yield (failure, run, has_worked) for each attempt to make an action work after it failed.

    A run has the successful steps after the failure and ends with the repeated action. The attempts of a failure end
    with the first that worked.
    """
    for t, failed in enumerate(steps):
        if failed.diagnosis.failure not in REPAIRABLE or not failed.action:
            continue
        between: list[Step] = []
        for step in steps[t + 1 : t + 2 + REPAIR_WITHIN]:
            if step.action != failed.action:
                between += [step] if step.diagnosis.success else []
                continue
            has_worked = step.diagnosis.success
            if between:
                yield failed.diagnosis.failure.value, _run([*between, step], gain=step.reward), has_worked
            if has_worked:
                break


def without_circles(run: Sequence[Step]) -> list[Step]:
    """Return the steps without those that led back to an earlier state (a loop-erased walk)."""
    kept: dict[str, Step] = {}
    for step in run:
        place = _place(step.pre)
        while place in kept:  # a revisited state closes a loop; drop the loop
            kept.popitem()
        kept[place] = step
    return list(kept.values())


def find_preparation(steps: Sequence[Step]) -> list[Step]:
    """Return the earlier steps that the last one needed: those about its things, or about things of a needed step.

    Before `put milk in fridge`, `open fridge` is needed, and `open oven` is not. If the last action names nothing, as
    in `submit()`, all steps count. Loops, failures and steps with an own reward or punishment are left out, and of more
    than MOST_PREPARING steps, the last ones are returned.
    """
    *earlier, last = without_circles(steps)
    needed: list[Step] = []
    things = {*parse_action(last.action).slots}
    names_nothing = not things
    for step in reversed(earlier):
        named = parse_action(step.action).slots
        counts = step.diagnosis.success and not step.reward and (names_nothing or not things.isdisjoint(named))
        if counts and len(needed) < MOST_PREPARING:
            needed.insert(0, step)
            things.update(named)
    return needed


def _place(state: State) -> str:
    """Return the text that identifies a state."""
    return f"{state.observation}\n{dumps(dict(state.facts))}"


def _run(steps: Sequence[Step], gain: float) -> StepRun:
    """Build a run from its steps."""
    ids = tuple(step.id for step in steps if step.id is not None)
    return StepRun(tuple(step.action for step in steps), steps[0].pre, steps[-1].post, ids, gain)


def generalise(runs: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the least general patterns that match all runs of one shape.

    Equal arguments stay and others become holes. Arguments that vary together share a hole.

        generalise([["open oven", "take pie"], ["open fridge", "take pie"]]) == ("open {1}", "take pie")
    """
    holes: dict[tuple[str, ...], str] = {}
    patterns = []
    for column in zip(*runs, strict=True):
        parsed = [parse_action(action) for action in column]
        arguments, changed = [], {}
        for values in zip(*(action.slots for action in parsed), strict=True):
            # The same tuple of values gets the same hole, which keeps arguments linked across steps.
            same = all(value == values[0] for value in values)
            arguments.append(values[0] if same else holes.setdefault(values, f"{{{len(holes) + 1}}}"))
            if not same:
                changed[values[-1]] = arguments[-1]
        # In the words of an action, because its template has lost the order of its flags and its quotes.
        pattern = put_values(column[-1], changed)
        is_one = pattern and all(bind(pattern, action) is not None for action in column)
        patterns.append(pattern if is_one else fill(parsed[0].template, arguments))
    return tuple(patterns)


def common(states: Sequence[State], before: Sequence[State] | None = None) -> dict[str, Any]:
    """Return a condition that holds in all of the states: their common facts or, without any, their clusters."""
    shared = _shared_facts(states)
    if before is not None:  # facts that already held are no sign of success
        shared -= _shared_facts(before)
    if shared:
        parts: list[dict[str, Any]] = [{"fact": {name: value}} for name, value in sorted(shared, key=repr)]
        return parts[0] if len(parts) == 1 else {"all": parts}
    clusters = [{"signature": signature} for signature in dict.fromkeys(state.signature for state in states)]
    return clusters[0] if len(clusters) == 1 else {"any": clusters}


def _shared_facts(states: Sequence[State]) -> set[tuple[str, Any]]:
    """Return the facts that all states have in common."""
    shared = _facts(states[0])
    for state in states[1:]:
        shared &= _facts(state)
    return shared


def _facts(state: State) -> set[tuple[str, Any]]:
    """Return the facts of a state as (name, value) pairs; a listing yields one pair per entry."""
    facts: set[tuple[str, Any]] = set()
    for name, value in state.facts.items():
        facts |= {(name, part) for part in value} if isinstance(value, list | tuple) else {(name, value)}
    return facts


def _build_skill(shape: SkillShape, candidate: SkillCandidate) -> Item:
    """Build the skill that a candidate's runs justify."""
    runs = candidate.runs
    steps = generalise([run.actions for run in runs])
    before, after = [run.before for run in runs], [run.after for run in runs]
    gain = candidate.gain
    return Item(
        "skill",
        skill_title(steps),
        f"Worked in {candidate.n} episodes, gaining {gain:.2f} on average",
        condition=common(before),
        steps=steps,
        verify=common(after, before),
        score=round(0.5 + 0.5 * min(1.0, gain) * candidate.n / (candidate.n + PRIOR), 3),
        **_common_fields(runs, candidate.n, "skill", shape),
    )


def _build_remedy(failure: str, shape: SkillShape, candidate: SkillCandidate) -> Item:
    """Build the remedy that a candidate's runs justify."""
    runs = candidate.runs
    steps = generalise([run.actions for run in runs])
    return Item(
        "remedy",
        remedy_title(steps, failure),
        f"It then worked in {candidate.n} of {candidate.tried} episodes",
        when_to_use=f"after `{fill_holes(shape[-1])}` failed: {failure.replace('_', ' ')}",
        steps=steps,
        repairs=failure,
        scope="step",
        **_common_fields(runs, candidate.n, "remedy", (failure, *shape)),
    )


def _common_fields(runs: Sequence[StepRun], n: int, kind: str, shape: Sequence[str]) -> Mapping[str, Any]:
    """Return the fields that skills and remedies share: evidence, places, confidence, and an id by shape."""
    digest = hashlib.blake2b(dumps(list(shape)).encode(), digest_size=6).hexdigest()
    places = dict.fromkeys(run.before.location for run in runs if run.before.location)
    return {
        "signatures": tuple(dict.fromkeys(run.before.signature for run in runs)),
        "locations": tuple(places),
        "provenance": tuple(dict.fromkeys(ref for run in runs for ref in run.ids)),
        "episodes": n,
        "confidence": round(0.95 - 0.6 / n, 3),
        "source": "experience",
        "writer": "rules",
        "id": f"{kind[:2]}-{digest}",
    }
