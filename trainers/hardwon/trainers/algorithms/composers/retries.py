"""Composers that give a failed group, or a failed episode, another attempt."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from hardwon.memory import Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.situations.familiarity import place
from hardwon.trainers.algorithms.samples import REVISED, Rollout

from .base import COMPOSERS, Composer, ComposerParts, EndedEpisode, group_played, has_succeeded
from .spec import Spec
from .starts import parse_shares

MOST_LINES = 3
"""Lines of a note about a failed attempt."""


def write_hint(actions: Sequence[str]) -> str:
    """Return a note that tells the first actions of a solution."""
    return f"hint : {' . '.join(actions)} ."


def write_account(trajectory: Trajectory, hidden: frozenset[str] = frozenset()) -> str:
    """Return a note about a failed attempt: at most three steps that failed or went in circles, else its last ones.

    Args:
        trajectory: The attempt.
        hidden: Actions that the note must not name, such as those of a solution.
    """
    steps = [step for step in trajectory.steps if step.action and step.action not in hidden]
    wrong = [step for step in steps if not step.diagnosis.success or step.diagnosis.loop]
    chosen = (wrong or steps)[-MOST_LINES:]
    return "\n".join(f"{_name_place(step)} : {step.action} failed ." for step in chosen)


def write_rubrics(trajectory: Trajectory, hidden: frozenset[str] = frozenset()) -> str:
    """Return a note of the rubrics that an attempt left unmet, after those that it met; empty if none is unmet.

    Met is the situation of a step that was rewarded or made progress, without its action, which may be part of the
    solution. Unmet are the steps of `write_account`. Each part has at most three lines.

    Args:
        trajectory: The attempt.
        hidden: Actions that the note must not name.
    """
    unmet = write_account(trajectory, hidden)
    steps = [step for step in trajectory.steps if step.reward > 0 or step.diagnosis.progress > 0]
    met = [f"{_name_place(step)} : not failed ." for step in steps[-MOST_LINES:]]
    return "\n".join([*dict.fromkeys(met), unmet]) if unmet else ""


def _name_place(step: Step) -> str:
    return (step.pre.location or step.pre.observation.partition(".")[0]).lower()


@COMPOSERS.add(
    "GHPO",
    "arXiv:2507.10628",
    evidence="C",
    name="hinted",
    method="ghpo",
    demonstrations=True,
    reading="the reference is a demonstration, and a hint tells the first ceil(f n) of its actions; told and not done",
    settings={"tasks.demonstrations": ["explored", "gold"]},
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 5,
        "arms.control": 3,
        "run.groups": 8,
    },
)
class Hinted(Composer):
    """Plays a group in which all failed again, with more and more of a solution in the prompt (GHPO, arXiv:2507.10628).

    The levels are those of `shares`. The first level at which some episode succeeds is the last one and is trained on,
    on its own prompts. The plain episodes stay as they are. An evaluation shows no hint.
    """

    acted = "hinted_groups"

    def __init__(self, parts: ComposerParts, *, shares: str = "0.25, 0.5, 0.75", start: int = 0) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            shares: Share of the solution that each level tells.
            start: Finished iterations before which nothing is hinted.
        """
        super().__init__(parts)
        self._shares, self._start, self._iteration = parse_shares(shares), start, 0

    @property
    def budget(self) -> float:
        """Return the most episodes of a group, as a multiple: itself, and once per level."""
        return 1.0 + len(self._shares)

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the plain episodes."""
        self._iteration = iteration
        return list(specs)

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return the groups in which nobody has succeeded so far, at their next level."""
        if self._iteration < self._start:
            return []
        following: list[Spec] = []
        for played in group_played(done).values():
            plain = [episode.spec for episode in played if not episode.spec.label]
            level = len(played) // len(plain) - 1
            if level >= len(self._shares) or any(has_succeeded(episode.rollout) for episode in played):
                continue
            path = self.parts.demonstrate(plain[0].task, plain[0].seed)
            if path is None or not path.steps:
                self.counts["without_hint"] += not level
                continue
            share = self._shares[level]
            note = write_hint([step.action for step in path.steps[: math.ceil(share * len(path.steps))]])
            following += [replace(spec, note=note, label=f"hint {share:g}") for spec in plain]
            self.counts["hinted_groups"] += 1
        return following

    def finish(self, done: Sequence[EndedEpisode]) -> list[Rollout]:
        """Return the plain episodes, and those of the last level of each group."""
        kept: list[Rollout] = []
        for played in group_played(done).values():
            last = played[-1].spec.label
            kept += [episode.rollout for episode in played if not episode.spec.label or episode.spec.label == last]
        return kept


@COMPOSERS.add(
    "RISE",
    "arXiv:2407.18219",
    evidence="C",
    name="retry",
    method="rise",
    reading="attempts of equal number are compared; the next attempt reads a short account of the failed steps",
)
class Retry(Composer):
    """Gives every failed episode another attempt that reads an account of the one before (RISE, arXiv:2407.18219).

    With the estimator `rise` and the loss kind imitation, attempts that are better than the one before are targets,
    weighted by their outcome. With others, attempts of the same number are compared. The success of first attempts and
    that within all attempts are reported apart (`compose/success`).
    """

    acted = "retries"

    def __init__(self, parts: ComposerParts, *, attempts: int = 2) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            attempts: Most attempts of an episode, the first one included.
        """
        super().__init__(parts)
        if attempts < 2:
            raise ConfigError(f"attempts is {attempts}; use 2 or more.")
        self._attempts = attempts

    @property
    def budget(self) -> float:
        """Return the number of attempts."""
        return float(self._attempts)

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return another attempt of the episodes that failed in the last round."""
        retried = {episode.spec.parent for episode in done if episode.spec.label}
        following: list[Spec] = []
        for spec, rollout in done:
            number = int(spec.label.removeprefix("try ")) if spec.label else 1
            if rollout.failed or has_succeeded(rollout) or number >= self._attempts or spec.session in retried:
                continue
            note = write_account(rollout.trajectory)
            if not note:
                continue
            following.append(replace(spec, note=note, label=f"try {number + 1}", parent=spec.session))
            self.counts["retries"] += 1
        return following


@COMPOSERS.add(
    "HeRL",
    "arXiv:2603.20046",
    evidence="C",
    name="revise",
    method="herl",
    reading="met rubrics are rewarded situations, unmet ones the steps that the diagnosis saw fail; trained on the "
    "revision's prompt, as the script does",
)
class Revise(Composer):
    """Lets failures be revised with a list of what was unmet, and keeps a revision that beats the group (HeRL).

    arXiv:2603.20046. At most `candidates` episodes with an outcome below 1 are revised, the best first. The best
    revision takes the place of a random plain episode in the group's comparison if it is better than all of them.
    A revised episode's own outcome grows by `bonus` x (outcome of its revision - its own), if that is better. Revisions
    are sampled at `temperature` and keep these log-probabilities. The loss of the authors is the term `hindsight`.
    """

    acted = "revisions"

    def __init__(
        self, parts: ComposerParts, *, candidates: int = 16, bonus: float = 0.05, temperature: float = 0.3
    ) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            candidates: Most episodes of a group that are revised.
            bonus: Share of the improvement that the revised episode gets.
            temperature: Sampling temperature of a revision.
        """
        super().__init__(parts)
        if candidates < 1 or temperature <= 0:
            raise ConfigError(
                f"candidates is {candidates} and temperature {temperature}; use 1 or more, and a value above 0."
            )
        self._candidates, self._bonus, self._temperature = candidates, bonus, temperature

    @property
    def budget(self) -> float:
        """Return 2: every episode may be revised once."""
        return 2.0

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return a revision of each candidate."""
        following: list[Spec] = []
        for played in group_played(done).values():
            if any(episode.spec.label for episode in played):
                continue
            open_ones = [
                episode for episode in played if episode.rollout.outcome is not None and episode.rollout.outcome < 1
            ]
            ranked = sorted(open_ones, key=lambda episode: (-(episode.rollout.outcome or 0.0), episode.spec.copy))
            for spec, rollout in ranked[: self._candidates]:
                path = self.parts.demonstrate(spec.task, spec.seed)
                hidden = frozenset(step.action for step in path.steps) if path is not None else frozenset()
                if note := write_rubrics(rollout.trajectory, hidden):
                    begun = replace(spec, note=note, label=REVISED, parent=spec.session, temperature=self._temperature)
                    following.append(begun)
                    self.counts["revisions"] += 1
        return following

    def finish(self, done: Sequence[EndedEpisode]) -> list[Rollout]:
        """Return the group with the best revision in it, if that is better than all others."""
        kept: list[Rollout] = []
        for played in group_played(done).values():
            plain = [episode.rollout for episode in played if not episode.spec.label]
            revised = {
                episode.spec.parent: episode.rollout
                for episode in played
                if episode.spec.label and not episode.rollout.failed
            }
            plain = [add_bonus(episode, revised.get(episode.trajectory.id), self._bonus) for episode in plain]
            best = max(revised.values(), key=lambda episode: episode.outcome or 0.0, default=None)
            top = max((episode.outcome or 0.0 for episode in plain), default=0.0)
            kept += plain
            if best is not None and (best.outcome or 0.0) > top:
                chance = random.Random(f"{self.parts.seed}/{best.trajectory.id}")
                kept.remove(chance.choice(plain))
                # with the root of the group, so that it is compared with the plain episodes
                kept.append(replace(best, root=plain[0].root))
                self.counts["kept"] += 1
        return kept


def add_bonus(rollout: Rollout, revised: Rollout | None, share: float) -> Rollout:
    """Return a rollout with a share of the improvement of its revision added to its outcome."""
    gain = 0.0 if revised is None else (revised.outcome or 0.0) - (rollout.outcome or 0.0)
    return replace(rollout, bonus=share * gain) if gain > 0 else rollout


@COMPOSERS.add(
    "HAR",
    "arXiv:2511.09127",
    evidence="C N",
    name="reflected",
    method="har",
    reading="without a teacher the note is the diagnosis; the shaper `lookback` has the share of the judge",
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 5,
        "tasks.compose.reflected.rounds": 10,
        "arms.control": 3,
        "run.groups": 8,
    },
)
class Reflected(Composer):
    """Plays a failed group again with a reflection on one of its failures, for the first iterations of a run (HAR).

    arXiv:2511.09127.
    The note has at most three lines with own wrong actions and never names an action of the solution. After `rounds`
    iterations all episodes are plain.
    """

    acted = "reflected_groups"

    def __init__(self, parts: ComposerParts, *, rounds: int = 10) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            rounds: Iterations of the run with reflections.
        """
        super().__init__(parts)
        self._rounds, self._iteration = rounds, 0

    @property
    def budget(self) -> float:
        """Return 2: every group may be played twice."""
        return 2.0

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the plain episodes."""
        self._iteration = iteration
        return list(specs)

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return the groups in which all failed, with a reflection."""
        if self._iteration >= self._rounds:
            return []
        following: list[Spec] = []
        for played in group_played(done).values():
            finished = [episode for episode in played if not episode.rollout.failed]
            if any(episode.spec.label or has_succeeded(episode.rollout) for episode in played) or not finished:
                continue
            spec, rollout = finished[0]
            path = self.parts.demonstrate(spec.task, spec.seed)
            hidden = frozenset(step.action for step in path.steps) if path is not None else frozenset()
            if note := write_account(rollout.trajectory, hidden):
                following += [replace(episode.spec, note=note, label="reflected") for episode in played]
                self.counts["reflected_groups"] += 1
        return following


@COMPOSERS.add(
    "SCOPE (recycling failures)",
    "arXiv:2602.24110",
    evidence="A N",
    name="repair",
    demonstrations=True,
    method="repair",
    needs=("steps",),
    reading="the corrected step is a demonstration's in that situation, and not trained",
    unseen="the bound below which a step is wrong: 0.5",
    settings={"tasks.demonstrations": ["explored", "gold"]},
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "environment.max_steps": 5,
        "roles.policy.sources.steps.judge": "examples.methods.judge:RuleJudge",
        "roles.policy.sources.steps.votes": 1,
    },
)
class Repair(Composer):
    """Goes on from the first wrong step of a failure, with a corrected step in its place (SCOPE, arXiv:2602.24110).

    The steps before the first turn whose score is below `bound` are kept, the wrong one is replaced by what a
    demonstration does in the same situation, and the policy goes on from there. Successes are never read.
    """

    acted = "repaired"

    def __init__(self, parts: ComposerParts, *, bound: float = 0.5, copies: int = 2) -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            bound: Score below which a step is wrong.
            copies: Episodes that go on from one repair; at least 2, to be compared with each other.
        """
        super().__init__(parts)
        if copies < 2:
            raise ConfigError(f"copies is {copies}; use 2 or more: episodes are compared with those of the same start.")
        self._bound, self._copies = bound, copies

    @property
    def budget(self) -> float:
        """Return 2: as many repaired episodes as plain ones."""
        return 2.0

    def find_wrong(self, rollout: Rollout) -> int | None:
        """Return the number of the first step whose score is below the bound; None if there is none."""
        steps = list(dict.fromkeys(row.turn for row in rollout.rows if row.role == "policy"))
        scores = rollout.signals.turns.get("steps", ())
        pairs = zip(steps, scores, strict=False)
        return next((step for step, score in pairs if score is not None and score < self._bound), None)

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return episodes that go on from the repaired failures."""
        following: list[Spec] = []
        for played in group_played(done).values():
            if any(episode.spec.label for episode in played):
                continue
            number, seen = len(played), set[tuple[str, ...]]()
            for spec, rollout in played:
                if rollout.failed or has_succeeded(rollout):
                    continue
                prefix = self._repair(spec, rollout)
                actions = tuple(step.action for step in prefix or ())
                if not prefix or actions in seen:
                    continue
                seen.add(actions)
                following += [
                    replace(spec, copy=number + n, prefix=prefix, label="repaired") for n in range(self._copies)
                ]
                number += self._copies
                self.counts["repaired"] += 1
        return following

    def _repair(self, spec: Spec, rollout: Rollout) -> tuple[Step, ...] | None:
        """Return the kept steps with the corrected one; None without a wrong step or a correction."""
        wrong, path = self.find_wrong(rollout), self.parts.demonstrate(spec.task, spec.seed)
        if wrong is None or path is None:
            return None
        steps = rollout.trajectory.steps
        situation, wrong_action = place(steps[wrong].pre), steps[wrong].action
        better = next(
            (step.action for step in path.steps if place(step.pre) == situation and step.action != wrong_action), None
        )
        if better is None:
            return None
        walked = self.parts.walk(spec.task, spec.seed, [*(step.action for step in steps[:wrong]), better])
        if walked is None or len(walked.steps) != wrong + 1 or walked.success:
            return None
        return walked.steps
