"""Credit of every step of recorded groups, by the estimators that need no model, and its rank correlation with labels.

The correlation is Kendall's tau-b, which corrects for ties: labels have three values, and many steps share a credit.
It is undefined where all labels or all credits are equal.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from hardwon.memory.learning.skill_mining import without_circles
from hardwon.trainers.algorithms.advantages import Advantages, Trace, Turn
from hardwon.trainers.algorithms.catalog import PARTS

from .process_data import LABELS, LabeledEpisode

RESAMPLES = 2000
DISCOUNT = 0.95
"""Discount of the plain return, the default of the estimators that discount."""
OUTCOME, RETURN, PROGRESS = "outcome alone", f"return, discount {DISCOUNT}", "diagnosis: progress"

MEASURED: Mapping[str, str] = {
    "grpo": "GRPO",
    "gigpo": "GiGPO",
    "hgpo": "HGPO",
    "salt": "SALT",
    "tree": "TreePS-RAG",
    "mrt": "MRT, that progress",
    "decs": "DECS, circles",
}
"""The estimators that give credit here, with their names in the table. All have their default settings."""

LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "credit all steps of an episode alike, as grpo": (
        "dr-grpo", "rloo", "lite", "reinforce", "himac", "arpo", "hdpo",
    ),
    "equal GiGPO, as anchors are situations here": ("slea",),
    "need probabilities of a policy": ("empg", "aepo", "igpo", "spae", "infopo", "oprl"),
    "need verdicts, scores or values of a trained model or judge": (
        "capo", "spark", "exprl", "tp-grpo", "prorag", "archer", "checklist", "epo-strategy", "preference",
    ),
    "need tags that the policy writes": ("rlvmr", "hae"),
    "need a reference solution": ("learnat",),
    "need episodes that begin with a part of another one, budgets, or a guide": ("appo", "hbpo", "rlad"),
    "weigh pairs of actions or targets of imitation, not steps": ("step-apo", "step-q", "rise"),
}  # fmt: skip
"""Estimators that are not measured, by reason. SPA is a shaper whose contributions a trained estimator gives."""

Row = dict[str, Any]
Credits = list[list[float]]
"""One value per labeled message, by episode."""


def build_traces(episodes: Sequence[LabeledEpisode]) -> list[Trace]:
    """Return the traces that the estimators read; the samples of a question are siblings."""
    return [_build_trace(episode) for episode in episodes]


def _build_trace(episode: LabeledEpisode) -> Trace:
    steps = episode.trajectory.steps
    needed = {id(step) for step in without_circles([step for step in steps if step.diagnosis.success])}
    turns = tuple(
        Turn(step.reward, step.pre.signature, step.action, valid=step.diagnosis.success, step=step.t) for step in steps
    )
    signals = {
        "progress": tuple(step.diagnosis.progress for step in steps),
        "redundant": tuple(float(id(step) not in needed) for step in steps),
    }
    return Trace(episode.trajectory.id, str(episode.question), turns, float(episode.is_success), signals=signals)


def compute_credits(episodes: Sequence[LabeledEpisode]) -> dict[str, Credits]:
    """Return the credit of every labeled message by each method, the outcome alone first."""
    traces = build_traces(episodes)
    methods: dict[str, Callable[[Sequence[Trace]], Advantages]] = {
        OUTCOME: lambda every: {trace.id: [trace.outcome] * len(trace.turns) for trace in every},
        RETURN: lambda every: {trace.id: trace.returns(DISCOUNT) for trace in every},
        PROGRESS: lambda every: {
            trace.id: [value or 0.0 for value in trace.read_signal("progress")] for trace in every
        },
    }
    methods |= {label: PARTS.get("estimator", name) for name, label in MEASURED.items()}
    return {name: _read_messages(episodes, method(traces)) for name, method in methods.items()}


def _read_messages(episodes: Sequence[LabeledEpisode], advantages: Advantages) -> Credits:
    """Return the credit of messages: that of their step, or the mean of the steps of a message with several calls."""
    return [
        [fmean(advantages[episode.trajectory.id][step] for step in steps) for steps in episode.steps]
        for episode in episodes
    ]


def correlate(episodes: Sequence[LabeledEpisode], credit: Mapping[str, Credits]) -> list[Row]:
    """Return one row per method: the correlation over all steps, within questions, and within episodes.

    Intervals resample whole questions. `gain` is the correlation over all steps less that of the outcome alone, of the
    same resamples.
    """
    drawn = _draw_questions(len({episode.question for episode in episodes}))
    tables = {name: _count_tables(episodes, values) for name, values in credit.items()}
    resampled = {name: compute_tau(np.tensordot(drawn, table, axes=1)) for name, table in tables.items()}
    rows = []
    for name, table in tables.items():
        (overall,) = compute_tau(table.sum(axis=0)[None])
        (alone,) = compute_tau(tables[OUTCOME].sum(axis=0)[None])
        rows.append(
            {
                "credit": name,
                "all": _round(overall),
                "all_ci95": _bound(resampled[name]),
                "gain": _round(overall - alone),
                "gain_ci95": _bound(resampled[name] - resampled[OUTCOME]),
                **_average("question", compute_tau(table), drawn),
                **_average_episodes(episodes, credit[name], drawn),
            }
        )
    return rows


def _draw_questions(count: int) -> Any:
    """Return how often each resample has each question, as an array of shape (RESAMPLES, questions)."""
    return np.random.default_rng(0).multinomial(count, [1 / count] * count, size=RESAMPLES)


def _count_tables(episodes: Sequence[LabeledEpisode], credit: Credits) -> Any:
    """Return how often each credit goes with each label, as an array of shape (questions, credits, labels)."""
    questions = sorted({episode.question for episode in episodes})
    # Sums in another order differ in the last bits, which must not make ranks of equal credits.
    levels, ranks = np.unique(np.round([value for own in credit for value in own], 9), return_inverse=True)
    table = np.zeros((len(questions), len(levels), len(LABELS)), dtype=int)
    at = iter(ranks)
    for episode in episodes:
        for label in episode.labels:
            table[questions.index(episode.question), next(at), LABELS.index(label)] += 1
    return table


def compute_tau(tables: Any) -> Any:
    """Return Kendall's tau-b of contingency tables; NaN where all rows or all columns but one are empty.

    tau-b = (C - D) / sqrt((n0 - n1) (n0 - n2)), with the concordant pairs C, the discordant pairs D, all pairs n0, and
    the pairs that are tied in the row (n1) or in the column (n2).

    Args:
        tables: Array of shape (n, rows, columns); both are ordered.

    Returns:
        Array of shape (n).
    """
    tables = np.asarray(tables, dtype=float)
    below = np.zeros_like(tables)
    below[:, :-1] = tables[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]  # counts in the rows after each row
    after = below.sum(axis=2, keepdims=True) - below.cumsum(axis=2)  # of these, in the columns after each column
    before = below.cumsum(axis=2) - below
    difference = (tables * (after - before)).sum(axis=(1, 2))
    pairs = _count_pairs(tables.sum(axis=(1, 2)))
    by_row, by_column = (pairs - _count_pairs(tables.sum(axis=axis)).sum(axis=1) for axis in (2, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(by_row * by_column > 0, difference / np.sqrt(by_row * by_column), np.nan)


def _count_pairs(counts: Any) -> Any:
    return counts * (counts - 1) / 2


def _average_episodes(episodes: Sequence[LabeledEpisode], credit: Credits, drawn: Any) -> Row:
    """Return the mean correlation within single episodes."""
    taus = [compute_tau(_count_tables([episode], [own]))[0] for episode, own in zip(episodes, credit, strict=True)]
    questions = sorted({episode.question for episode in episodes})
    sums, sizes = np.zeros(len(questions)), np.zeros(len(questions))
    for episode, tau in zip(episodes, taus, strict=True):
        if not np.isnan(tau):
            sums[questions.index(episode.question)] += tau
            sizes[questions.index(episode.question)] += 1
    return _summarize("episode", sums, sizes, drawn)


def _average(name: str, taus: Any, drawn: Any) -> Row:
    """Return the mean correlation of the questions in which it is defined."""
    return _summarize(name, np.nan_to_num(taus), (~np.isnan(taus)).astype(float), drawn)


def _summarize(name: str, sums: Any, sizes: Any, drawn: Any) -> Row:
    """Return a mean with its interval over resampled questions, and the number of values; None without values."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, means = sums.sum() / sizes.sum(), (drawn @ sums) / (drawn @ sizes)
    return {name: _round(mean), f"{name}_ci95": _bound(means), f"{name}s": int(sizes.sum())}


def _round(value: Any) -> float | None:
    return None if np.isnan(value) else round(float(value), 3)


def _bound(values: Any) -> list[float] | None:
    """Return the 95% interval of resampled values, without the resamples in which nothing is defined."""
    values = values[~np.isnan(values)]
    return [round(float(bound), 3) for bound in np.percentile(values, (2.5, 97.5))] if len(values) else None
