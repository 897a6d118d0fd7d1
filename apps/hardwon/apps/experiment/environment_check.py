"""Play an environment with random actions, and say what an agent could not learn in it, and why.

    problems = check_environment(environment)

Each finding names what was seen in the episodes and what to change; see docs/environments.md.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hardwon.memory import State
from hardwon.runtime.interfaces.types import Environment, Info

EPISODES = 30
"""Number of episodes that are played."""
STEPS = 30
"""Largest number of steps of an episode."""
_VARYING = re.compile(r"\b(?=\w*\d)\w{4,}\b|\b\d+[:.]\d+\S*")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that will not be learned."""

    problem: str
    remedy: str


@dataclass(slots=True)
class _Played:
    """One episode of random actions."""

    states: list[State]
    actions: list[str]
    infos: list[Info]
    rewards: list[float]
    has_ended: bool = False
    """Whether the environment said that it is over."""
    offered: int = 0
    """The number of admissible actions in its states."""

    @property
    def has_outcome(self) -> bool:
        return any("success" in info or "lost" in info for info in self.infos) or any(self.rewards)

    @property
    def has_success(self) -> bool:
        return any(info.get("success") for info in self.infos) or any(reward > 0 for reward in self.rewards)


def check_environment(environment: Environment) -> list[Finding]:
    """Return what an agent could not learn in an environment; empty if nothing stands in its way."""
    try:
        if findings := list(_check_methods(environment)):
            return findings
        episodes = [_play(environment, seed) for seed in range(EPISODES)]
        first = _play(environment, 0)
    except Exception as error:  # the user's code can raise anything
        problem = f"An episode raised {type(error).__name__}: {error}"
        return [Finding(problem, "An exception excludes the episode. Report the agent's failures in Info(error=...).")]
    return [
        *_check_repetition(first, episodes[0]),
        *_check_tasks(episodes),
        *_check_texts(episodes),
        *_check_outcomes(episodes),
    ]


def _check_methods(environment: Environment) -> Iterator[Finding]:
    """Look at what each method returns, which another interface may do in another way."""
    state: object = environment.reset(seed=0)
    if not isinstance(state, State):
        yield Finding(f"reset returns {_name(state)}.", "Return State('what is seen', task='what is to be done').")
        return
    offered: object = environment.admissible(state)
    if not isinstance(offered, list | tuple) or not all(isinstance(action, str) for action in offered):
        yield Finding(f"admissible returns {_name(offered)}.", "Return a list of texts, empty if any text will do.")
        return
    answer: object = environment.step(offered[0]) if offered else (state, 0.0, False, Info())
    parts = answer if isinstance(answer, tuple) and len(answer) == 4 else (None, 0.0, False, None)
    if not (isinstance(parts[0], State) and isinstance(parts[3], dict)):
        yield Finding(f"step returns {_name(answer)}.", "Return (State(...), reward, whether it is over, Info(...)).")
    elif environment.clone() is environment:
        yield Finding("clone returns the same environment.", "Return a new one; episodes may be played side by side.")


def _name(value: object) -> str:
    """Return the type of a value in words, with the types of the parts of a tuple."""
    return f"({', '.join(map(_name, value))})" if isinstance(value, tuple) else type(value).__name__


def _play(environment: Environment, seed: int) -> _Played:
    """Play one episode with random admissible actions."""
    rng, state = random.Random(seed), environment.reset(seed=seed)
    played = _Played([state], [], [], [])
    while not played.has_ended and len(played.actions) < STEPS and (offered := environment.admissible(state)):
        action = rng.choice(sorted(offered))
        state, reward, played.has_ended, info = environment.step(action)
        played.states.append(state)
        played.actions.append(action)
        played.infos.append(info)
        played.rewards.append(reward)
        played.offered += len(offered)
    return played


def _check_repetition(again: _Played, first: _Played) -> Iterator[Finding]:
    if (again.states[0].observation, again.actions) != (first.states[0].observation, first.actions):
        yield Finding(
            "The same seed gives another episode.",
            "Draw everything from random.Random(seed) in reset; an interrupted episode is resumed by replaying it.",
        )


def _check_tasks(episodes: Sequence[_Played]) -> Iterator[Finding]:
    if not all(state.task.strip() for played in episodes for state in played.states):
        yield Finding("Some states have no task.", "Say what is to be done: State(..., task='find the lamp').")
    if not any(played.actions for played in episodes):
        yield Finding(
            "No action is offered, so only a language model can act.",
            "Let admissible(state) list the actions, if they can be listed.",
        )
    elif all(played.offered == len(played.actions) for played in episodes):
        yield Finding("Only one action is offered in each state.", "Offer every action that an agent may try.")


def _check_texts(episodes: Sequence[_Played]) -> Iterator[Finding]:
    """Look for words that make every situation unique."""
    words = Counter(
        word
        for played in episodes
        for word in {word for state in played.states for word in _VARYING.findall(state.observation)}
    )
    unique = [word for word, count in words.items() if count == 1]
    if len(unique) > len(episodes) / 2:
        yield Finding(
            f"Texts have ids, times or counters that no other episode has: {', '.join(unique[:5])}.",
            "Leave them out of the observation, or replace them by what they mean; facts may hold them.",
        )


def _check_outcomes(episodes: Sequence[_Played]) -> Iterator[Finding]:
    acted = [played for played in episodes if played.actions]
    if not acted:
        return
    if not any(played.has_outcome for played in acted):
        yield Finding(
            "No episode says how it ended.",
            "Return Info(success=True) or a reward for a solved task, and Info(lost=True) for one that is lost.",
        )
    elif all(played.has_ended and len(played.actions) == 1 and not played.has_success for played in acted):
        yield Finding(
            "Every episode was lost at its first step.",
            "Let a wrong action be answered in the feedback and go on; from the first step alone nothing is learned.",
        )
    elif not any(played.has_success for played in acted):
        yield Finding(
            f"Random actions were never rewarded in {len(acted)} episodes.",
            "Reward steps on the way, begin with easier tasks, or give solutions in gold_path().",
        )
    if not any(played.has_ended for played in acted):
        yield Finding(f"No episode ended within {STEPS} steps.", "Return True as the third value when it is over.")
    silent = [
        action
        for played in acted
        for at, action in enumerate(played.actions)
        if played.states[at] == played.states[at + 1]
        and not played.rewards[at]
        # a score, or that it is not solved yet, says nothing about the action
        and not any(played.infos[at].get(name) for name in ("invalid", "error", "lost", "success"))
    ]
    if len(silent) > sum(len(played.actions) for played in acted) / 2:
        yield Finding(
            f"Most actions change nothing and say nothing, such as `{silent[0]}`.",
            "Show all that decides in the observation. Say in State(feedback=...) what an action did, or in "
            "Info(invalid=...) why it was refused.",
        )
