"""Samples and packed sequences: the tokens that engines sampled and that training reads.

A sample is one completion with its prompt, the log-probabilities of sampling, and its origin: role,
adapter version, arm, library snapshot, and anchor. Text is never tokenized twice. Samples that extend
each other are packed into one sequence, so shared tokens are read once. This module uses no model and
no tensors.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType
from typing import Literal

from hardwon.memory import Trajectory

from .advantages import Trace, Turn
from .outcomes import OutcomeKind, measure_outcome
from .signals import NO_SIGNALS, Signals

Ids = tuple[int, ...]
REVISED = "revised"
"""Label of an episode that revises another one, with which its trace's id ends."""
Tried = Literal["", "missed", "known", "shown"]
"""Whether an episode was shown the candidate that it was to try.

It was shown, or known because a recalled item says the same, or missed because recall did not find it. Empty if there
was none, or if nothing was recalled.
"""
Allowed = tuple[int, ...] | None
"""Token ids that were possible at a position; None for the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion as it was sampled. `logprobs`, `mask` and `allowed` have one entry per completion token."""

    prompt: Ids
    completion: Ids
    logprobs: tuple[float, ...]
    """Log-probabilities under the policy that sampled, among the allowed tokens, at the sampling temperature."""
    mask: tuple[bool, ...]
    """Whether the token was a choice. Forced tokens are not trained on."""
    allowed: tuple[Allowed, ...]
    role: str
    version: int
    """Version of the role's adapter."""
    arm: str
    snapshot: str
    """Snapshot of the library that was consulted."""
    anchor: str
    """Key of the situation and the memory shown; see `compute_anchor`."""
    trace: str
    turn: int

    def __post_init__(self) -> None:
        lengths = {len(self.completion), len(self.logprobs), len(self.mask), len(self.allowed)}
        if len(lengths) > 1:
            raise ValueError(f"a sample's completion, logprobs, mask and allowed differ in length: {sorted(lengths)}.")


@dataclass(frozen=True, slots=True)
class WordChoice:
    """The answer of a role to a question with two words."""

    prompt: Ids
    p_yes: float
    """Probability of the word that agrees, among both."""
    version: int
    """Version of the weights that answered."""
    is_yes: bool = True
    tokens: int = 0
    """Length of the text that it is about, if that counts."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode with the samples of its turns. `failed` is the reason for an exclusion, or empty."""

    trajectory: Trajectory
    rows: tuple[Sample, ...]
    group: str
    failed: str = ""
    measure: OutcomeKind = "success"
    """The kind of outcome of the episode."""
    signals: Signals = NO_SIGNALS
    """Findings of the sources about the turns of the policy."""
    weight: float = 1.0
    """Factor of the policy's advantages."""
    tried: Tried = ""
    """Whether the episode was shown a candidate for the library."""
    start: int = 0
    """Number of steps that the episode began with; the policy decided those after them."""
    parent: str = ""
    """Id of the trajectory of this policy that the first steps were taken from, if any."""
    root: str = ""
    """Key of how the episode began; empty for a plain one. Only episodes with equal roots are compared."""
    label: str = ""
    """What a composer distinguishes the episode by."""
    bonus: float = 0.0
    """What a composer adds to the outcome for the policy's credit."""
    consulted: tuple[WordChoice, ...] = ()
    """The questions to the guide after which the recollection was shown."""

    @property
    def is_plain(self) -> bool:
        """Return whether the episode was played from its beginning, and shown nothing but what its arm shows."""
        return not (self.root or self.label)

    @property
    def outcome(self) -> float | None:
        """Return the outcome of the episode; None if it is excluded."""
        return None if self.failed else measure_outcome(self.trajectory, self.measure)


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """Tokens of one trace of one role that are read once: prompts and completions, concatenated.

    All tuples have one entry per token. Where `mask` is False, the other entries are fill values.
    """

    tokens: Ids
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    allowed: tuple[Allowed, ...]
    role: str
    trace: str
    version: int
    turns: tuple[int, ...] = ()
    """Step of the episode that a token belongs to, for losses with one ratio per turn; empty if nothing needs it."""
    outcome: float = 0.0
    """Outcome of the episode, for loss terms that read it."""

    def __len__(self) -> int:
        return len(self.tokens)


def compute_anchor(signature: str, memory: str | None) -> str:
    """Return the key under which turns are compared.

    The key covers the situation and the memory shown in it: the same situation with other memory is
    another context for the policy.
    """
    if not memory:
        return signature
    return f"{signature}|{hashlib.blake2b(memory.encode(), digest_size=8).hexdigest()}"


def to_trace(rollout: Rollout, role: str = "policy") -> Trace:
    """Reduce a rollout to the trace of one role, with one turn per step that the role has samples of, in order.

    Several samples of one step, such as speech and the action after it, are one turn.
    """
    samples = [sample for sample in rollout.rows if sample.role == role]
    steps = rollout.trajectory.steps
    path = tuple(step.action for step in steps[: rollout.start])
    past_actions = {*path}
    turns: list[Turn] = []
    for number, group in groupby(samples, key=lambda sample: sample.turn):
        rows = list(group)
        step = steps[number] if number < len(steps) else None
        action = step.action if step else ""
        turns.append(
            Turn(
                step.reward if step else 0.0,
                rows[-1].anchor,
                action,
                valid=step.diagnosis.success if step else False,
                novel=action not in past_actions,
                tokens=sum(sum(row.mask) for row in rows),
                logprob=sum(sum(row.logprobs) for row in rows),
                step=number,
            )
        )
        past_actions.add(action)
    outcome = (measure_outcome(rollout.trajectory, rollout.measure) or 0.0) + rollout.bonus
    arm = samples[0].arm if samples else rollout.trajectory.arm
    given = rollout.signals if role == "policy" else NO_SIGNALS
    fields = (given.turns, given.trace, given.tags, given.facts)
    begun = (rollout.root, rollout.parent, path, rollout.label)
    return Trace(rollout.trajectory.id, rollout.group, tuple(turns), outcome, role, arm, *fields, *begun)


def pack_samples(
    samples: Iterable[Sample],
    advantages: Mapping[str, Sequence[float]],
    *,
    outcomes: Mapping[str, float] = MappingProxyType({}),
) -> list[PackedSequence]:
    """Pack samples into sequences and merge those that extend each other.

    A sample extends the previous sequence if its prompt starts with all tokens of that sequence, and its
    trace, role and version are the same. The merged tokens are exactly those that the engine read.
    """
    sequences: list[PackedSequence] = []
    turns: dict[tuple[str, str], tuple[int, int]] = {}
    for sample in samples:
        # counted, because `sample.turn` is the step of the episode and a role may skip steps
        number, step = turns.get((sample.trace, sample.role), (-1, -1))
        number += sample.turn != step
        turns[sample.trace, sample.role] = number, sample.turn
        part = _to_sequence(sample, advantages[sample.trace][number], outcomes.get(sample.trace, 0.0))
        # only the last one: a trace's samples are adjacent, and a missed merge costs only time
        last = sequences[-1] if sequences else None
        if last is not None and _is_continuation(sample, last):
            sequences[-1] = _extend_sequence(last, part)
        else:
            sequences.append(part)
    return sequences


def _is_continuation(sample: Sample, last: PackedSequence) -> bool:
    """Return whether the sample's prompt starts with all tokens of the sequence."""
    same = (sample.trace, sample.role, sample.version) == (last.trace, last.role, last.version)
    return same and sample.prompt[: len(last.tokens)] == last.tokens


def _to_sequence(sample: Sample, advantage: float, outcome: float) -> PackedSequence:
    """Return the sample as a sequence of its own. Prompt tokens are masked out."""
    before = len(sample.prompt)
    unrestricted: tuple[Allowed, ...] = (None,) * before
    return PackedSequence(
        sample.prompt + sample.completion,
        (False,) * before + sample.mask,
        (0.0,) * before + sample.logprobs,
        (0.0,) * before + (advantage,) * len(sample.completion),
        unrestricted + sample.allowed,
        sample.role,
        sample.trace,
        sample.version,
        (sample.turn,) * (before + len(sample.completion)),
        outcome,
    )


def _extend_sequence(last: PackedSequence, part: PackedSequence) -> PackedSequence:
    """Append to a sequence the tokens of `part` that it does not have yet."""
    cut = len(last.tokens)
    return replace(
        last,
        tokens=last.tokens + part.tokens[cut:],
        mask=last.mask + part.mask[cut:],
        logprobs=last.logprobs + part.logprobs[cut:],
        advantages=last.advantages + part.advantages[cut:],
        allowed=last.allowed + part.allowed[cut:],
        turns=last.turns + part.turns[cut:],
    )


def micro_batches(parts: Sequence[PackedSequence], budget: int) -> list[list[PackedSequence]]:
    """Split sequences into batches of at most `budget` padded tokens, longest sequences first.

    The padded size is the number of sequences times the length of the longest. A sequence that is longer
    than the budget gets a batch of its own; nothing is truncated.
    """
    batches: list[list[PackedSequence]] = []
    for part in sorted(parts, key=len, reverse=True):
        # sorted, so the first sequence of a batch is its longest and sets the padded width
        if batches and (len(batches[-1]) + 1) * len(batches[-1][0]) <= budget:
            batches[-1].append(part)
        else:
            batches.append([part])
    return batches
