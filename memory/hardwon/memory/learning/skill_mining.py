"""Skill mining: skills and remedies that recorded episodes justify (Steve-Evolving, arXiv:2603.13131).

A skill is a run of successful steps that ends with a gain. A remedy is what made an action work after it failed: the
steps in between, or other arguments of the call. Runs of the same shape form one candidate: common arguments stay, and
different ones become holes. Preconditions and success checks are the facts that all runs have in common before and
after. A skill has no step that others did without: what is left out at no loss may be a detour, or
what an attacker had the agent do besides its task. It has no tool that only results named either: the agent reads them
anyway, and anybody may have written them. No model is involved.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from hardwon.memory.records import MIN_SKILL_STEPS, Admission, Failure, Item, State, Step, Trajectory
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.titles import fill_holes, name_arguments, remedy_title, skill_title
from hardwon.memory.storage.episodes import dumps
from hardwon.memory.trust.testimony import REQUESTS

from .calls.mining import REFUTED, REPAIRABLE, CallMiner
from .generalization import ArgumentChange, common, find_changes, find_replacement, generalise
from .tuning import TUNING

SkillShape = tuple[str, ...]
RemedyKey = tuple[str, SkillShape, tuple[ArgumentChange, ...]]
"""The failure, the shapes of the failed action and of the steps that repair it, and the changes."""


@dataclass(slots=True)
class StepRun:
    """Consecutive steps that form a unit."""

    actions: tuple[str, ...]
    before: State
    after: State
    ids: tuple[int, ...]
    gain: float
    failed: str = ""
    """The action that failed before, if the run made it work."""
    changes: tuple[ArgumentChange, ...] = ()
    """The arguments that made it work; the last action has them."""


@dataclass(slots=True)
class SkillCandidate:
    """All runs of one shape."""

    n: int = 0
    """Number of their episodes, which `episodes` limits."""
    tried: int = 0
    """Number of episodes in which the steps were taken, whether they reached what they are for or not."""
    direct: int = 0
    """Number of episodes, since there is support, in which the action worked although nothing repaired it."""
    runs: list[StepRun] = field(default_factory=list)
    proposed: int = 0
    last: str = ""
    """The episode of the last run; episodes are read whole, one after another."""
    last_tried: str = ""
    episodes: set[str] = field(default_factory=set)
    """Up to `max_runs` episodes of the runs; a single episode justifies nothing."""

    def add(self, run: StepRun, episode: str) -> None:
        """Add a run, and drop the oldest beyond `max_runs`."""
        self.add_attempt(episode)
        self.n += episode != self.last
        self.last = episode
        if len(self.episodes) < TUNING.max_runs:
            self.episodes.add(episode)
        self.runs.append(run)
        del self.runs[: -TUNING.max_runs]

    def add_attempt(self, episode: str) -> None:
        """Count an episode in which the steps were taken."""
        self.tried += episode != self.last_tried
        self.last_tried = episode

    @property
    def due(self) -> bool:
        """Return whether the support passed a power of two since the last proposal, and most attempts worked."""
        total = self.n + self.direct
        is_new = total.bit_length() > self.proposed.bit_length() and len(self.episodes) >= TUNING.min_support
        return is_new and 2 * self.n > self.tried

    @property
    def is_firm(self) -> bool:
        """Return whether nearly all attempts worked; a flaky tool works with other arguments by chance, too."""
        return self.n >= REQUESTS and 5 * self.n >= 4 * self.tried

    @property
    def gain(self) -> float:
        """Return the mean gain of the runs."""
        return sum(run.gain for run in self.runs) / len(self.runs)

    def replaces(self, longer: "SkillCandidate") -> bool:
        """Return whether these runs gained as much as longer ones from the same situation, in half as many episodes."""
        if len(self.episodes) < TUNING.min_support or 2 * self.n < longer.n or self.gain < longer.gain - 1e-9:
            return False
        starts = {run.before.signature for run in self.runs}
        return any(run.before.signature in starts for run in longer.runs)


class SkillMiner:
    """Collects runs from episodes, and proposes an item whenever the support of a shape passed a power of two."""

    def __init__(self) -> None:
        self._skills: dict[SkillShape, SkillCandidate] = {}
        self._remedies: dict[RemedyKey, SkillCandidate] = {}
        self._supported: dict[str, list[tuple[SkillShape, tuple[ArgumentChange, ...], SkillCandidate]]] = {}
        """By the shape of the failed action, the remedies with support: repairing shapes, changes and candidate."""
        self._calls = CallMiner()
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
        self._calls.read(trajectory)
        doubtful = self._find_doubtful(trajectory.steps)
        if self._is_successful(trajectory):
            for run in gains(trajectory.steps):  # single steps, too: they show which others are not needed
                if doubtful.isdisjoint(parse_action(action).verb for action in run.actions):
                    self._skills.setdefault(shape_of(run.actions), SkillCandidate()).add(run, trajectory.id)
        for failure, run, has_worked in repairs(trajectory.steps):
            failed, *repairing = shape_of((run.failed, *run.actions))
            if parse_action(run.failed).verb != parse_action(run.actions[-1]).verb:
                self._calls.add_alternative(failed, repairing[-1])
            candidate = self._remedies.setdefault((failure, (failed, *repairing), run.changes), SkillCandidate())
            if not has_worked:
                candidate.add_attempt(trajectory.id)
                continue
            n = candidate.n
            candidate.add(run, trajectory.id)
            if n < TUNING.min_support <= candidate.n:
                self._supported.setdefault(failed, []).append((tuple(repairing[:-1]), run.changes, candidate))
        self._count_direct(trajectory)
        if len(self._remedies) > TUNING.max_remedies:
            self._remedies = {key: each for key, each in self._remedies.items() if each.n >= TUNING.min_support}

    def _count_direct(self, trajectory: Trajectory) -> None:
        """Count for each supported remedy whether its action worked at the first attempt, without the repair."""
        tries: dict[str, list[tuple[int, str]]] = {}
        for at, step in enumerate(trajectory.steps):
            tries.setdefault(parse_action(step.action).template, []).append((at, step.action))
        for failed in tries.keys() & self._supported.keys():
            for repairing, changes, candidate in self._supported[failed]:
                first = next((at for at, action in tries[failed] if _has_old_values(action, changes)), None)
                if first is None or not trajectory.steps[first].diagnosis.success:
                    continue
                is_repaired = repairing and all(tries.get(step, [(first, "")])[0][0] < first for step in repairing)
                candidate.direct += not is_repaired

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

    def candidates(self) -> Iterator[tuple[SkillCandidate | None, Item]]:
        """Yield the candidates that are due, the best supported first.

        Call `mark_submitted` on a candidate after its submission; otherwise it is proposed again. There is none of a
        remedy of `calls`.
        """
        due: list[tuple[int, SkillCandidate | None, Item]] = [
            (c.n, c, _build_skill(shape, c))
            for shape, c in self._skills.items()
            if c.due and len(shape) >= MIN_SKILL_STEPS and not self._find_shorter(shape)
        ]
        due += [(n, None, item) for n, item in self._calls.candidates()]
        remedies = (
            (c.n, c, _build_remedy(*key, c, is_usual=self._is_usual(key, c)))
            for key, c in self._remedies.items()
            # other values may be right for some requests alone, and a second try may work by chance
            if c.due and (c.is_firm or not (key[2] or is_retry(key))) and not self._is_padded(key)
        )
        due += [remedy for remedy in remedies if not self._calls.is_refuted(remedy[2])]
        yield from ((candidate, item) for _, candidate, item in sorted(due, key=lambda each: (-each[0], each[2].id)))

    def _is_padded(self, key: RemedyKey) -> bool:
        """Return whether the steps of a remedy are not needed, because the call works when it is repeated."""
        failure, (failed, *_), changes = key
        again = self._remedies.get((failure, (failed, failed), ()))
        return bool(again and again.is_firm and not changes and not is_retry(key))

    def _is_usual(self, key: RemedyKey, candidate: SkillCandidate) -> bool:
        """Return whether the action that a remedy repairs usually fails, so that the remedy comes first."""
        failure, (*_, repaired), changes = key
        is_chance = failure == Failure.UNAVAILABLE or is_retry(key)
        return (
            candidate.direct < candidate.tried
            and not is_chance
            and not self._calls.is_right_elsewhere(repaired, changes)
        )

    def find_padded(self, items: Iterable[Item]) -> Iterator[tuple[Item, str]]:
        """Yield the items of rules that newer episodes do not support, with the reason.

        Of a skill, a part was enough; a remedy, a guardrail or a warning is about other values than it says.
        """
        for item in (item for item in items if item.writer == "rules"):
            if item.kind == "skill" and (shorter := self._find_shorter(shape_of(item.steps))):
                yield item, f"{len(shorter)} of its {len(item.steps)} steps gained as much without the others"
            elif self.explains(item):
                yield item, "it works with other values"
            elif item.kind == "remedy" and self._calls.is_refuted(item):
                yield item, REFUTED

    def explains(self, item: Item) -> bool:
        """Return whether a guardrail or a warning is about calls with wrong values; see `calls`."""
        return self._calls.explains(item)

    def _find_shorter(self, shape: SkillShape) -> SkillShape:
        """Return the shape of a part of the steps that gained as much without the others; empty if there is none."""
        whole = self._skills.get(shape)
        parts = (part for length in range(1, len(shape)) for part in combinations(shape, length))
        return next((p for p in parts if whole and p in self._skills and self._skills[p].replaces(whole)), ())

    @staticmethod
    def mark_submitted(candidate: SkillCandidate | None, admission: Admission) -> None:
        """Record that a candidate was submitted to the curator, whatever the decision."""
        if candidate is not None:
            candidate.proposed = candidate.n + candidate.direct


def is_retry(key: RemedyKey) -> bool:
    """Return whether a remedy is the failed call itself, made once more."""
    _, shape, changes = key
    return len(shape) == 2 and shape[0] == shape[1] and not changes


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
            kept = without_circles(run)[-TUNING.max_skill_steps :]  # the end of a run is what earns the reward
            yield _run(kept, gain=sum(rewarded.reward for rewarded in run))
            run = []


def repairs(steps: Sequence[Step]) -> Iterator[tuple[str, StepRun, bool]]:
    """Yield (failure, run, has_worked) for each attempt to make an action work after it failed.

    A run has the successful steps after the failure and ends with the repeated action, or with the same tool and other
    arguments; or it is the same with another program or tool. A call may work at once if it is repeated as it was.
    After an outage, other arguments show nothing. The attempts of a failure end with the first that worked.
    """
    for t, failed in enumerate(steps):
        is_outage = failed.diagnosis.failure == Failure.UNAVAILABLE
        if not (failed.action and (is_outage or failed.diagnosis.failure in REPAIRABLE)):
            continue
        between: list[Step] = []
        for step in steps[t + 1 : t + 2 + TUNING.repair_within]:
            changes = find_changes(failed.action, step.action)
            if step.action != failed.action and not changes:
                between += [step] if step.diagnosis.success else []
                continue
            has_worked = step.diagnosis.success
            # what an environment offers is tried again anyway
            is_again = step.action == failed.action and parse_action(failed.action).template.endswith(")")
            if (between or changes or is_again) and not (is_outage and changes):
                is_whole = any(new not in ("", "{}") for _, old, new in changes if old == "{}")
                # a command with an addition stands alone: what came between was how the agent found it
                run = _run([step] if is_whole else [*between, step], gain=step.reward)
                run.failed, run.changes = failed.action, changes
                yield failed.diagnosis.failure.value, run, has_worked
            if has_worked:
                break
        if not is_outage:
            yield from _replacements(failed, steps[t + 1 : t + 2 + TUNING.repair_within])


def _replacements(failed: Step, later: Sequence[Step]) -> Iterator[tuple[str, StepRun, bool]]:
    """Yield the attempts with another program or tool, if the one that failed was not tried again."""
    if any(step.action == failed.action or find_changes(failed.action, step.action) for step in later):
        return
    for step in later:
        if program := find_replacement(failed.action, step.action):
            run = _run([step], gain=step.reward)
            run.failed, run.changes = failed.action, (("", "{}", program),)
            yield failed.diagnosis.failure.value, run, step.diagnosis.success
            if step.diagnosis.success:
                break


def _has_old_values(action: str, changes: Sequence[ArgumentChange]) -> bool:
    """Return whether a call has the arguments with which it failed, without what was added to a command.

    A change without a name is of the program or tool, and says nothing of the arguments.
    """
    values = {part.name: part.value for part in parse_action(action).parts}
    return all(
        not name
        or values.get(name, "") == old
        or (old == "{}" and name in values and not (new and new in values[name]))
        for name, old, new in changes
    )


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
    than `max_preparing_steps` steps, the last ones are returned.
    """
    *earlier, last = without_circles(steps)
    needed: list[Step] = []
    things = {*parse_action(last.action).slots}
    names_nothing = not things
    for step in reversed(earlier):
        named = parse_action(step.action).slots
        counts = step.diagnosis.success and not step.reward and (names_nothing or not things.isdisjoint(named))
        if counts and len(needed) < TUNING.max_preparing_steps:
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


def _build_skill(shape: SkillShape, candidate: SkillCandidate) -> Item:
    """Build the skill that a candidate's runs justify."""
    runs = candidate.runs
    steps = generalise([run.actions for run in runs])
    before, after = [run.before for run in runs], [run.after for run in runs]
    gain = candidate.gain
    return Item(
        "skill",
        skill_title(steps),
        f"Worked in {candidate.n} episodes{'' if gain == 1.0 else f', gaining {gain:.2f} on average'}",
        condition=common(before),
        steps=steps,
        verify=common(after, before),
        score=round(0.5 + 0.5 * min(1.0, gain) * candidate.n / (candidate.n + TUNING.prior_runs), 3),
        **_common_fields(runs, candidate.n, "skill", shape),
    )


def _build_remedy(
    failure: str, shape: SkillShape, changes: tuple[ArgumentChange, ...], candidate: SkillCandidate, *, is_usual: bool
) -> Item:
    """Build the remedy that a candidate's runs justify."""
    runs = candidate.runs
    failed, *steps = generalise([(run.failed, *run.actions) for run in runs])
    name, n, tried = failure.replace("_", " "), candidate.n, candidate.tried
    is_again = is_retry((failure, shape, changes))
    old, new = ("it", "the next call") if is_again else ("without that, it", "after that, it")
    if changes:
        names = [name for name, *_ in changes]
        old, new = name_arguments(failed, names), name_arguments(steps[-1], names)
    return Item(
        "remedy",
        remedy_title(failed, steps, name, is_usual=is_usual),
        f"{old[0].upper()}{old[1:]} failed ({name}) in {tried} of {tried + candidate.direct} episodes; "
        f"{new} worked in {n} of {tried}",
        when_to_use=f"after `{fill_holes(failed)}` failed: {name}",
        forbids=failed if changes else None,
        steps=tuple(steps),
        repairs=failure,
        scope="step",
        # the ids of remedies without changes are those of earlier versions
        **_common_fields(runs, n, "remedy", (failure, *shape[1:], *(part for change in changes for part in change))),
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
