"""Rows: completions exactly as they were sampled, and the token streams that training sees.

A row is one completion with its prompt, its behaviour log-probabilities, and everything that tells
it from others: role, adapter version, arm, library snapshot, and the situation with the memory that
was shown in it. Nothing is tokenised twice. Rows that extend each other become one sequence, so that
shared tokens are read once. This file knows no model and no tensor.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hardwon.memory import Trajectory

from .advantages import Trace, Turn

Ids = tuple[int, ...]
Allowed = tuple[int, ...] | None
"""Token ids that were possible at a position; None for all."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion. `logprobs`, `mask` and `allowed` have one entry per completion token."""

    prompt: Ids
    completion: Ids
    logprobs: tuple[float, ...]
    """Under the policy that sampled, among the allowed tokens, at the sampling temperature."""
    mask: tuple[bool, ...]
    """Whether the token was a choice: one that was the only possible one is not trained on."""
    allowed: tuple[Allowed, ...]
    role: str
    version: int
    """Of the role's adapter."""
    arm: str
    snapshot: str
    """Of the library that was consulted."""
    anchor: str
    """Situation and memory shown; see `anchor_of`."""
    trace: str
    turn: int

    def __post_init__(self) -> None:
        lengths = {len(self.completion), len(self.logprobs), len(self.mask), len(self.allowed)}
        if len(lengths) > 1:
            raise ValueError(f"a row's completion, logprobs, mask and allowed differ in length: {sorted(lengths)}.")


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode with the rows of its turns; `failed` says why it is excluded, empty when it counts."""

    trajectory: Trajectory
    rows: tuple[Sample, ...]
    group: str
    failed: str = ""


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """Tokens to be read once, of one trace of one role: prompts and completions in a line.

    All tuples have one entry per token. Where `mask` is False the others say nothing.
    """

    tokens: Ids
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    allowed: tuple[Allowed, ...]
    role: str
    trace: str
    version: int

    def __len__(self) -> int:
        return len(self.tokens)


def compute_anchor(signature: str, memory: str | None) -> str:
    """The key under which turns are compared: the situation and the memory shown in it.

    Turns with other memory before them are in another context, however alike the situations.
    """
    if not memory:
        return signature
    return f"{signature}|{hashlib.blake2b(memory.encode(), digest_size=8).hexdigest()}"


def to_trace(rollout: Rollout, role: str = "policy") -> Trace:
    """What credit may know of a rollout: a turn for every row of the role, in order."""
    rows = [row for row in rollout.rows if row.role == role]
    steps = rollout.trajectory.steps
    taken: set[str] = set()
    turns = []
    for row in rows:
        step = steps[row.turn] if row.turn < len(steps) else None
        action = step.action if step else ""
        turns.append(
            Turn(
                step.reward if step else 0.0,
                row.anchor,
                action,
                entropy=-sum(row.logprobs) / max(1, len(row.logprobs)),
                valid=step.diagnosis.success if step else False,
                novel=action not in taken,
            )
        )
        taken.add(action)
    outcome = float(rollout.trajectory.success or 0)
    arm = rows[0].arm if rows else rollout.trajectory.arm
    return Trace(rollout.trajectory.id, rollout.group, tuple(turns), outcome, role, arm)


def pack_samples(rows: Iterable[Sample], advantages: Mapping[str, Sequence[float]]) -> list[PackedSequence]:
    """The rows as streams, those that extend each other merged; advantages by trace id and turn of the role.

    A row joins the sequence before it when its prompt begins with all of that sequence's tokens and
    it has the same trace, role and version; its tokens are then exactly those the engine saw.
    """
    made: list[PackedSequence] = []
    turns: dict[tuple[str, str], int] = {}
    for row in rows:
        number = turns.get((row.trace, row.role), 0)
        turns[row.trace, row.role] = number + 1
        part = _to_sequence(row, advantages[row.trace][number])
        last = made[-1] if made else None
        if last is not None and _is_continuation(row, last):
            made[-1] = _extend_sequence(last, part)
        else:
            made.append(part)
    return made


def _is_continuation(row: Sample, last: PackedSequence) -> bool:
    same = (row.trace, row.role, row.version) == (last.trace, last.role, last.version)
    return same and row.prompt[: len(last.tokens)] == last.tokens


def _to_sequence(row: Sample, advantage: float) -> PackedSequence:
    before = len(row.prompt)
    none: tuple[Allowed, ...] = (None,) * before
    return PackedSequence(
        row.prompt + row.completion,
        (False,) * before + row.mask,
        (0.0,) * before + row.logprobs,
        (0.0,) * before + (advantage,) * len(row.completion),
        none + row.allowed,
        row.role,
        row.trace,
        row.version,
    )


def _extend_sequence(last: PackedSequence, part: PackedSequence) -> PackedSequence:
    cut = len(last.tokens)
    return replace(
        last,
        tokens=last.tokens + part.tokens[cut:],
        mask=last.mask + part.mask[cut:],
        logprobs=last.logprobs + part.logprobs[cut:],
        advantages=last.advantages + part.advantages[cut:],
        allowed=last.allowed + part.allowed[cut:],
    )


def micro_batches(parts: Sequence[PackedSequence], budget: int) -> list[list[PackedSequence]]:
    """Sequences in batches whose padded size, rows times longest, is at most `budget` tokens, longest first.

    A sequence longer than the budget is a batch of its own: nothing is cut.
    """
    batches: list[list[PackedSequence]] = []
    for part in sorted(parts, key=len, reverse=True):
        if batches and (len(batches[-1]) + 1) * len(batches[-1][0]) <= budget:
            batches[-1].append(part)
        else:
            batches.append([part])
    return batches
