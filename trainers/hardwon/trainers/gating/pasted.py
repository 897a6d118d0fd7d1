"""Guidance that shows earlier episodes as they were: the baseline of a memory that learns nothing from them.

    arms: {control: 4, retrieved: 4, pasted: 4}
    guidance: {pasted: episodes}

It recalls like the arm `retrieved`, and shows the episodes of the recalled steps, with every action and its result, in
place of items, counts and estimates. It has no guardrails and no plans.
"""

from collections.abc import Iterator
from typing import Any

from hardwon.memory import Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.prompts import clean
from hardwon.trainers.algorithms.outcomes import name_outcome

from .tuning import TUNING


class PastedEpisodes:
    """Shows the episodes of the recalled steps. Those of untrusted writers are left out."""

    def __init__(self, library: Any = None) -> None:
        """Read the episodes from a library; None reads them from that of the agent that it guides."""
        self._library = library

    def attach(self, library: Any) -> "PastedEpisodes":
        """Return the same guidance for a library, unless it has one of its own."""
        return self if self._library is not None else PastedEpisodes(library)

    def propose(self, context: Context) -> Hint | None:
        """Return the episodes of the recalled steps, or None if nothing was recalled."""
        if self._library is None:
            raise ConfigError("PastedEpisodes has no library to read; give it to an agent, or call attach(library).")
        hits = (hit.what for hit in context.recollection.steps)
        steps = [step for step in hits if isinstance(step, Step) and step.why.trajectory and not step.why.untrusted]
        names = list(dict.fromkeys(step.why.trajectory for step in steps))[: TUNING.pasted_episodes]
        if not names:
            return None
        text = "\n".join(render_episode(self._library.episodes.get(name)) for name in names)
        return Hint(
            text, step_ids=tuple(step.id for step in steps if step.id is not None and step.why.trajectory in names)
        )


def render_episode(episode: Trajectory) -> str:
    """Return an episode as lines: how it ended, where its steps began, and each action with its result."""
    return "\n".join(_render(episode))


def _render(episode: Trajectory) -> Iterator[str]:
    yield f"An earlier episode. Outcome: {name_outcome(episode)}."
    steps = episode.steps[-TUNING.pasted_steps :]
    if steps:
        yield f"It saw: {clean(steps[0].pre.observation, TUNING.max_characters)}"
    for step in steps:
        reward = f" (reward {step.reward:+.2f})" if step.reward else ""
        yield f"- {step.action}: {clean(step.post.feedback or step.post.observation, TUNING.max_characters)}{reward}"
