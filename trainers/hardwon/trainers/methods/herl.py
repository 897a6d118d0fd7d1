"""HeRL (arXiv:2603.20046)."""

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hardwon.memory import Trajectory
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import (
    Composer,
    ComposerParts,
    EndedEpisode,
    group_played,
    list_solution,
)
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.logprobs import find_trained_positions
from hardwon.trainers.algorithms.losses import MAX_LOG_RATIO
from hardwon.trainers.algorithms.samples import REVISED, PackedSequence, Rollout
from hardwon.trainers.algorithms.terms import FrozenPolicy, Term, TokenFacts

from .blocks.accounts import MOST_LINES, name_place, write_account


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
    met = [f"{name_place(step)} : not failed ." for step in steps[-MOST_LINES:]]
    return "\n".join([*dict.fromkeys(met), unmet]) if unmet else ""


@PARTS.add(
    "composer",
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
                if note := write_rubrics(rollout.trajectory, list_solution(self.parts, spec)):
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


@PARTS.add(
    "term",
    "HeRL (loss of revisions)",
    "arXiv:2603.20046",
    evidence="C",
    name="hindsight",
    method="herl",
    reading="r is the ratio to the log-probabilities of sampling, as in the formula; in the authors' code the old "
    "policy is the present one, so r is 1",
    settings={"tasks.compose.revise": {}, "roles.policy.credit.outcome": "score"},
    example={
        "environment.game": "twc",
        "environment.params": "numLocations=1, numItemsToPutAway=2, includeDoors=0, limitInventorySize=0",
        "arms.control": 2,
        "roles.policy.loss.terms.hindsight.weight": 0.5,
        "run.groups": 8,
    },
)
class Hindsight(Term):
    """Replaces the surrogate of the revisions of the composer `revise` by -weight A r / (r + 1), with r = pi / pi_old.

    Where r is 1, its gradient is weight A / 4; it is bounded, however far the revision is from the policy. Episodes
    that are no revision have the run's own loss.
    """

    reads_zero = True  # the advantages of revisions are moved into the term

    def __init__(self, *, weight: float = 0.5) -> None:
        """Create the term.

        Args:
            weight: Weight of a revision.
        """
        super().__init__()
        self._weight = weight
        self._advantages: dict[str, tuple[float, ...]] = {}

    def rewrite(self, sequences: Sequence[PackedSequence], policy: FrozenPolicy) -> list[PackedSequence]:
        """Return the sequences, those of revisions without the advantages, which the term keeps."""
        rewritten = []
        for sequence in sequences:
            if sequence.trace.endswith(f"+{REVISED}"):
                silent = replace(sequence, advantages=(0.0,) * len(sequence))
                self._advantages[_name(silent)] = sequence.advantages
                sequence = silent
            rewritten.append(sequence)
        return rewritten

    def penalize(self, tokens: TokenFacts) -> Tensor:
        """Return -weight A r / (r + 1) of the tokens of revisions, and 0 of the others."""
        advantages, old = [], []
        for sequence in tokens.sequences:
            own = self._advantages.get(_name(sequence), sequence.advantages)
            is_revised = _name(sequence) in self._advantages
            for at in find_trained_positions(sequence):
                advantages.append(own[at] if is_revised else 0.0)
                old.append(sequence.logprobs[at])
        weights = torch.tensor(advantages, dtype=tokens.new.dtype, device=tokens.new.device)
        before = torch.tensor(old, dtype=tokens.new.dtype, device=tokens.new.device)
        self.seen += len(weights)
        self.acted += float((weights != 0).sum())
        # r / (r + 1) is the logistic function of log r
        return -self._weight * weights * torch.sigmoid((tokens.new - before).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))

    def end(self) -> dict[str, float]:
        """End a step and forget its sequences."""
        self._advantages = {}
        return super().end()


def _name(sequence: PackedSequence) -> str:
    """Return a key of a sequence: a trace can have several, which differ in their tokens."""
    return f"{sequence.trace}/{hash(sequence.tokens)}"
