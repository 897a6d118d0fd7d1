"""A seeded single-elimination tournament, whose ranks become rewards (ArenaRL, arXiv:2601.06487)."""

from collections.abc import Awaitable, Callable, Sequence
from statistics import fmean

Match = tuple[int, int]
Compare = Callable[[Sequence[Match]], Awaitable[Sequence[tuple[float, float] | None]]]
"""Returns the scores of both sides of every match; None where there is no verdict."""


async def rank_by_tournament(number: int, compare: Compare) -> list[float]:
    """Return the reward 1 - rank / (n - 1) of every player.

    Everybody plays against player 0 first, and the mean scores are the seeds. The best seeds meet late. The losers of a
    round are ranked by their mean points so far; equal points share the mean rank. There are 2 (n - 1) matches, each
    judged in both orders. A match without a verdict is a tie.
    """
    if number < 2:
        return [0.0] * number
    points: list[list[float]] = [[] for _ in range(number)]
    await _play([(0, player) for player in range(1, number)], points, compare)
    seeds = sorted(range(number), key=lambda player: (-_average(points[player]), player))
    ranks = [0.0] * number
    remaining: list[int | None] = _seat(seeds)
    places = number
    while len(remaining) > 1:
        pairs = list(zip(remaining[::2], remaining[1::2], strict=True))
        matches = [(a, b) for a, b in pairs if a is not None and b is not None]
        totals = dict(zip(matches, await _play(matches, points, compare), strict=True))
        winners: list[int | None] = []
        losers: list[int] = []
        for a, b in pairs:
            if a is None or b is None:
                winners.append(b if a is None else a)
                continue
            # a tie lets the better seed win
            own, other = totals[a, b]
            is_first = own > other or (own == other and seeds.index(a) < seeds.index(b))
            winners.append(a if is_first else b)
            losers.append(b if is_first else a)
        places -= len(losers)
        _rank(losers, places, points, ranks)
        remaining = winners
    return [1 - rank / (number - 1) for rank in ranks]


def _seat(seeds: Sequence[int]) -> list[int | None]:
    """Return the players in the order of a bracket: 1 against n, and so on; None is a bye of a high seed."""
    size = 1
    order = [0]
    while size < len(seeds):
        size *= 2
        order = [place for seat in order for place in (seat, size - 1 - seat)]
    return [seeds[place] if place < len(seeds) else None for place in order]


async def _play(matches: Sequence[Match], points: list[list[float]], compare: Compare) -> list[tuple[float, float]]:
    """Judge every match in both orders, add the scores to the players' points, and return the sums."""
    verdicts = await compare([*matches, *((b, a) for a, b in matches)]) if matches else []
    totals = []
    for at, (a, b) in enumerate(matches):
        forward, backward = verdicts[at], verdicts[at + len(matches)]
        scores = [forward] if forward is not None else []
        scores += [(backward[1], backward[0])] if backward is not None else []
        for own, other in scores:
            points[a].append(own)
            points[b].append(other)
        totals.append((sum(own for own, _ in scores), sum(other for _, other in scores)))
    return totals


def _rank(losers: Sequence[int], first: int, points: Sequence[Sequence[float]], ranks: list[float]) -> None:
    """Give the losers of a round the ranks from `first` on, by their mean points; equal points share the mean."""
    ordered = sorted(losers, key=lambda player: -_average(points[player]))
    at = 0
    while at < len(ordered):
        equal = [p for p in ordered[at:] if _average(points[p]) == _average(points[ordered[at]])]
        for player in equal:
            ranks[player] = first + at + (len(equal) - 1) / 2
        at += len(equal)


def _average(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
