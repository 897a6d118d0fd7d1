"""`hardwon bench process`: compare the diagnosis and step-level credit with labels of single steps.

    verdicts     share of labeled steps on which a verdict agrees with the label: helped or not, and all three labels
    first error  whether the first step labeled -1 is found
    credit       rank correlation of the credit of steps with their labels

The labels are those of AgentProcessBench, whose file you download; see `process_data`. Nothing is fitted to them: the
diagnosis and the estimators have their default settings. Beside each figure is what the outcome of the episode alone
says, because it is a strong baseline. Intervals resample whole questions.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardwon.apps.shared.common import AsJson, out, print_figures, say_json, table

if TYPE_CHECKING:
    from hardwon.memory import Diagnosis

    from .process_data import LabeledEpisode

UNDEFINED = "undefined"
Row = dict[str, Any]
Verdicts = list[list[int]]
"""A label for every labeled message, by episode."""


def process(
    file: Annotated[
        Path,
        typer.Argument(
            help="File of labeled trajectories, such as hotpotqa.jsonl of AgentProcessBench.", show_default=False
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Compare the diagnosis and step-level credit with labels of steps, from a file of AgentProcessBench."""
    result = measure(file)
    if as_json:
        say_json(result)
        return
    data = result["data"]
    labels = ", ".join(f"{count} of {label}" for label, count in data["labels"].items())
    out().print(
        f"{data['episodes']} trajectories of {data['questions']} questions, {data['successes']} successes; "
        f"{data['steps']} labeled steps: {labels}"
    )
    for rows in (result["verdicts"], result["first_errors"], result["credit"]):
        lines = [_format_row(row) for row in rows]
        out().print()
        print_figures(table(*lines[0], rows=[list(line.values()) for line in lines]))
    for reason, names in result["left_out"].items():
        out().print(f"Not measured, because they {reason}: {', '.join(names)}.")


def measure(file: Path) -> Row:
    """Return all figures of a file.

    Raises:
        ConfigError: The file does not exist, or a line is malformed.
    """
    # The data load numpy and the estimators, and `--help` must stay fast.
    from . import process_credit
    from .process_data import read_episodes

    episodes = read_episodes(file)
    counts = Counter(label for episode in episodes for label in episode.labels)
    verdicts = list_verdicts(episodes)
    return {
        "data": {
            "episodes": len(episodes),
            "questions": len({episode.question for episode in episodes}),
            "successes": sum(episode.is_success for episode in episodes),
            "steps": counts.total(),
            "labels": {f"{label:+d}" if label else "0": counts[label] for label in (1, 0, -1)},
        },
        "verdicts": [_compare_labels(name, episodes, given) for name, given in verdicts.items()],
        "first_errors": [_compare_first(name, episodes, given) for name, given in verdicts.items()],
        "credit": process_credit.correlate(episodes, process_credit.compute_credits(episodes)),
        "left_out": {reason: list(names) for reason, names in process_credit.LEFT_OUT.items()},
    }


def list_verdicts(episodes: Sequence["LabeledEpisode"]) -> Mapping[str, Verdicts]:
    """Return the verdicts of each method on all labeled messages."""
    ((majority, _),) = Counter(label for episode in episodes for label in episode.labels).most_common(1)
    return {
        "the most frequent label": [[majority] * len(episode.labels) for episode in episodes],
        "outcome alone": [[1 if episode.is_success else -1] * len(episode.labels) for episode in episodes],
        "outcome at the last step": [
            [1] * (len(episode.labels) - 1) + [1 if episode.is_success else -1] for episode in episodes
        ],
        "diagnosis before the outcome": [grade_messages(episode, outcome=False) for episode in episodes],
        "diagnosis with the outcome": [grade_messages(episode, outcome=True) for episode in episodes],
    }


def grade_messages(episode: "LabeledEpisode", *, outcome: bool) -> list[int]:
    """Return the verdict of the diagnosis on each labeled message: the worst of its steps.

    Args:
        episode: The trajectory.
        outcome: Whether the last step is diagnosed with the outcome, as when a live episode ends.
    """
    diagnoses = [step.diagnosis for step in episode.trajectory.steps]
    if not outcome:
        diagnoses[-1] = episode.before_outcome
    return [min(grade(diagnoses[step]) for step in steps) for steps in episode.steps]


def grade(diagnosis: "Diagnosis") -> int:
    """Return a diagnosis as a label.

    A failure is an error, -1. A step is 0, neither, if it had no effect, if an outage stopped it, or if it succeeded
    in a circle.
    """
    from hardwon.memory import Failure

    if diagnosis.failure is Failure.NONE:
        return 0 if diagnosis.loop else 1
    return 0 if diagnosis.failure in (Failure.NO_EFFECT, Failure.UNAVAILABLE) else -1


def find_first_error(labels: Sequence[int]) -> int | None:
    """Return the number of the first message labeled -1; None if there is none."""
    return next((number for number, label in enumerate(labels) if label == -1), None)


def _compare_labels(name: str, episodes: Sequence["LabeledEpisode"], verdicts: Verdicts) -> Row:
    """Return the share of steps with the right verdict, for helped or not, and for all three labels."""
    pairs = [
        (episode.question, label, verdict)
        for episode, own in zip(episodes, verdicts, strict=True)
        for label, verdict in zip(episode.labels, own, strict=True)
    ]
    groups = [question for question, _, _ in pairs]
    return {
        "verdict": name,
        **_average("helped", [(label == 1) == (verdict == 1) for _, label, verdict in pairs], groups),
        **_average("label", [label == verdict for _, label, verdict in pairs], groups),
        "steps": len(pairs),
    }


def _compare_first(name: str, episodes: Sequence["LabeledEpisode"], verdicts: Verdicts) -> Row:
    """Return the shares of trajectories whose first error is found: of all, and of those that have one."""
    pairs = [
        (episode.question, find_first_error(episode.labels), find_first_error(own))
        for episode, own in zip(episodes, verdicts, strict=True)
    ]
    wrong = [(question, first, guess) for question, first, guess in pairs if first is not None]
    close = [guess is not None and abs(guess - first) <= 1 for _, first, guess in wrong if first is not None]
    groups = [question for question, _, _ in wrong]
    return {
        "verdict": name,
        **_average("right", [first == guess for _, first, guess in pairs], [question for question, _, _ in pairs]),
        **_average("found", [first == guess for _, first, guess in wrong], groups),
        **_average("within_1", close, groups),
        "episodes": len(pairs),
        "with_error": len(wrong),
    }


def _average(name: str, values: Sequence[bool], groups: Sequence[int]) -> Row:
    """Return the share of true values, and its interval over resampled questions; None without values."""
    import numpy as np

    from benchmarks.retrieval.trajectories import interval

    figures = np.array(values, dtype=float)
    share = round(float(figures.mean()), 3) if len(figures) else None
    return {name: share, f"{name}_ci95": interval(figures, np.array(groups))}


def _format_row(row: Row) -> dict[str, str]:
    """Return the cells of a row, each figure with its interval; one without a value is undefined."""
    cells = {name: UNDEFINED if value is None else str(value) for name, value in row.items() if "_ci95" not in name}
    for name, bounds in row.items():
        if name.endswith("_ci95") and bounds is not None:
            figure = name.removesuffix("_ci95")
            cells[figure] = f"{cells[figure]} ({bounds[0]:g} to {bounds[1]:g})"
    return cells
