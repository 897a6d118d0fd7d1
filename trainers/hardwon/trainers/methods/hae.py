"""HiPER (HAE, arXiv:2602.16165)."""

from collections.abc import Sequence
from statistics import fmean

from hardwon.trainers.algorithms.advantages import Advantages, Trace, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "estimator",
    "HiPER (HAE)",
    "arXiv:2602.16165",
    evidence="C",
    needs=("tags",),
    reading="a segment begins where the policy chooses the tag `planning`; values are means of the siblings' returns "
    "in a situation in place of critic heads, and a turn at a boundary has the sum of both advantages",
    settings={"roles.policy.settings.speech": "tagged"},
)
def hae(
    traces: Sequence[Trace], *, discount: float = 0.99, lam_turn: float = 0.95, lam_segment: float = 0.95
) -> Advantages:
    """Compute hierarchical advantages of turns within segments, and of segments (HiPER, arXiv:2602.16165).

    Args:
        traces: Traces of any number of groups.
        discount: Discount gamma.
        lam_turn: Decay within a segment.
        lam_segment: Decay over segments.
    """
    advantages: Advantages = {trace.id: [0.0] * len(trace.turns) for trace in traces}
    for group in group_siblings(traces):
        if len(group) < 2:
            continue
        values = _read_values(group, discount)
        for trace in group:
            own = [values[turn.anchor] for turn in trace.turns]
            starts = find_starts(trace)
            low, high = compute_hierarchical(
                _pay_turns(trace), starts, own, [own[s] for s in starts], discount, lam_turn, lam_segment
            )
            for start, advantage in zip(starts, high, strict=True):
                low[start] += advantage
            advantages[trace.id] = low
    return advantages


def find_starts(trace: Trace) -> list[int]:
    """Return the turns that begin a segment: the first one, and those with the tag `planning`; no tag is KEEP."""
    tags = (*trace.tags, *[""] * len(trace.turns))
    return [t for t in range(len(trace.turns)) if t == 0 or tags[t] == "planning"]


def compute_hierarchical(
    rewards: Sequence[float],
    starts: Sequence[int],
    low: Sequence[float],
    high: Sequence[float],
    discount: float,
    lam_turn: float,
    lam_segment: float,
) -> tuple[list[float], list[float]]:
    """Return the advantages of turns and of segments.

    delta_t = r_t + gamma V' - V_low(t), where V' is V_low(t + 1) inside a segment and V_high(next) at its end. The sum
    of deltas, decayed by gamma lam_turn, does not cross the boundary. delta_k = discounted rewards of the segment +
    gamma^n V_high(next) - V_high(k), decayed by gamma^n lam_segment.

    Worked example (row 46): gamma and both lam 1, values 0, rewards 0, 0, 1 and segments {1, 2}, {3} give 0, 0, 1 for
    the turns and 1, 1 for the segments.

    Args:
        rewards: Reward of every turn; after the last one the episode is over.
        starts: First turn of every segment.
        low: Value of every turn.
        high: Value of every segment.
        discount: Discount gamma.
        lam_turn: Decay within a segment.
        lam_segment: Decay over segments.
    """
    ends = [*starts[1:], len(rewards)]
    following = [*high[1:], 0.0] if high else []
    turns, segments, after = [0.0] * len(rewards), [0.0] * len(starts), 0.0
    for k in reversed(range(len(starts))):
        start, end, carried = starts[k], ends[k], 0.0
        for t in reversed(range(start, end)):
            value = low[t + 1] if t + 1 < end else following[k]
            carried = rewards[t] + discount * value - low[t] + discount * lam_turn * carried
            turns[t] = carried
        n = end - start
        paid = sum(discount**j * rewards[start + j] for j in range(n))
        after = paid + discount**n * following[k] - high[k] + discount**n * lam_segment * after
        segments[k] = after
    return turns, segments


def _pay_turns(trace: Trace) -> list[float]:
    """Return the rewards of the turns, or the outcome at the last turn where no turn was rewarded."""
    rewards = [turn.reward for turn in trace.turns]
    return [*rewards[:-1], trace.outcome] if rewards and not any(rewards) else rewards


def _read_values(group: Sequence[Trace], discount: float) -> dict[str, float]:
    """Return the mean return in every situation; one that a single trace came to takes the mean of the group."""
    returns: dict[str, dict[str, float]] = {}
    firsts = []
    for trace in group:
        following = 0.0
        for turn, reward in zip(reversed(trace.turns), reversed(_pay_turns(trace)), strict=True):
            following = reward + discount * following
            returns.setdefault(turn.anchor, {})[trace.id] = following  # the first visit stays
        firsts.append(following)
    mean = fmean(firsts)
    return {anchor: fmean(own.values()) if len(own) > 1 else mean for anchor, own in returns.items()}
