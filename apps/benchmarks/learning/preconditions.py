"""`hardwon bench preconditions`: does an agent see a precondition that no text states?

    empty            an empty library
    learned          the library of earlier errands of the same kinds, with other things and places
    stated           an empty library, and the precondition in the notes of every state
    learned, stated  both, also while learning

An errand is right if it is completed in the fewest steps possible, so the first choice has to be right: the near way
wastes steps where something is missing, and the long way wastes them where nothing is. `both` counts the pairs in which
both errands are right. An agent that always takes the same way gets one errand of each pair right, and no pair.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardwon.apps.shared.common import AsJson, print_figures, say_json, table, tell

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime import Planner, Policy

    from .errands import Errand

CONDITIONS = ("empty", "learned", "stated", "learned, stated")
AGENTS = ("episodic", "skills", "lookahead")
"""`EpisodicPolicy`, the same with `SkillPlanner`, and `LookaheadPolicy`."""
MAX_STEPS = 10
TEST = "test"
COUNTED = ("with_precondition", "twins", "both")
"""What is counted as right: the errands with a precondition, their twins, and pairs."""
Row = dict[str, Any]
Outcomes = list[tuple[bool, bool]]
"""For every errand in order: whether it was completed, and whether in the fewest steps."""


def preconditions(
    episodes: Annotated[int, typer.Option(min=1, help="Number of learning episodes.")] = 160,
    seeds: Annotated[int, typer.Option(min=1, help="Number of agent seeds: 0, 1, ...")] = 3,
    as_json: AsJson = False,
) -> None:
    """Measure how often agents see a precondition that no text states, in 40 minimal pairs of errands."""
    rows = measure(episodes, seeds, tell)
    if as_json:
        say_json({"rows": rows})
        return
    lines = [_format_row(row) for row in rows]
    print_figures(table(*lines[0], rows=[list(line.values()) for line in lines]))


def measure(episodes: int, seeds: int, tell: Callable[[str], None]) -> list[Row]:
    """Return a row per agent and condition, after the rows of agents that follow one rule.

    Args:
        episodes: Number of learning episodes of each library.
        seeds: Number of agent seeds.
        tell: Function that receives lines of progress.
    """
    rows = [summarize(name, "-", [outcomes]) for name, outcomes in list_rules().items()]
    for agent in AGENTS:
        for condition in CONDITIONS:
            tell(f"{agent}, {condition} ...")
            rows.append(
                summarize(agent, condition, [run_seed(agent, condition, seed, episodes) for seed in range(seeds)])
            )
    return rows


def list_rules() -> dict[str, Outcomes]:
    """Return the outcomes of agents that know every condition, or always choose the near or the long way."""
    from .errands import find_plan, find_twin, list_errands

    errands = list_errands(TEST)
    plans = [find_plan(errand) for errand in errands]
    # The twin without a precondition is completed by the near way, and the other errand by the long one.
    near = [_adapt_plan(e, e if not e.has_precondition else find_twin(errands, n)) for n, e in enumerate(errands)]
    far = [_adapt_plan(e, e if e.has_precondition else find_twin(errands, n)) for n, e in enumerate(errands)]
    chosen = {"knows every condition": plans, "always near": near, "always long": far}
    return {
        name: [follow_plan(errand, plan) for errand, plan in zip(errands, own, strict=True)]
        for name, own in chosen.items()
    }


def _adapt_plan(errand: "Errand", model: "Errand") -> tuple[str, ...]:
    """Return the plan of one errand of a pair, with the last action of the other."""
    from .errands import find_plan

    return (*find_plan(model)[:-1], errand.goal.text)


def follow_plan(errand: "Errand", plan: Sequence[str]) -> tuple[bool, bool]:
    """Return whether a plan completes an errand, and whether in the fewest steps."""
    from .errands import find_plan

    facts, is_done = errand.start, False
    for action in plan:
        operator = next((o for o in errand.list_offered(facts) if o.text == action), None)
        after = operator.apply(facts) if operator else None
        is_done = after is not None and operator == errand.goal
        facts = facts if after is None else after
    return is_done, is_done and len(plan) == len(find_plan(errand))


def run_seed(agent: str, condition: str, seed: int, episodes: int) -> Outcomes:
    """Return the outcomes of one agent seed, which learns first in the conditions that say so."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.policies.episodic import EpisodicPolicy
    from hardwon.runtime.policies.lookahead import LookaheadPolicy

    policy = LookaheadPolicy() if agent == "lookahead" else EpisodicPolicy()
    planner = "skills" if agent == "skills" else None
    is_stated = "stated" in condition
    with ExperienceLibrary.open(":memory:") as library:
        if "learned" in condition:
            learn(policy, planner, library, episodes, seed, is_stated=is_stated)
        return play(policy, planner, library, seed, is_stated=is_stated)


def learn(
    policy: "Policy",
    planner: "Planner | str | None",
    library: "ExperienceLibrary",
    episodes: int,
    seed: int,
    *,
    is_stated: bool,
) -> None:
    """Play learning episodes, each round of all errands in a new order."""
    from hardwon.runtime.agent import Agent

    from .errands import Errands

    agent = Agent(
        policy, library, Errands(is_stated=is_stated), arm="step", max_steps=MAX_STEPS, seed=seed, planner=planner
    )
    try:
        for errand in _draw_order(episodes, seed):
            agent.run("learn", errand)
        library.admin.index()
    finally:
        agent.close()


def _draw_order(episodes: int, seed: int) -> Iterator[int]:
    """Yield the numbers of the errands of the learning episodes."""
    from .errands import list_errands

    count = len(list_errands("learn"))
    rng = random.Random(f"order:{seed}")
    order: list[int] = []
    for _ in range(episodes):
        order = order or rng.sample(range(count), count)
        yield order.pop()


def play(
    policy: "Policy",
    planner: "Planner | str | None",
    library: "ExperienceLibrary",
    seed: int,
    *,
    is_stated: bool,
    errands: Sequence[int] | None = None,
) -> Outcomes:
    """Return the outcomes of the test errands with a frozen library.

    Args:
        policy: The policy.
        planner: The planner, or its name.
        library: The library, which is not changed.
        seed: Seed of the agent.
        is_stated: Whether the notes of the states say the precondition.
        errands: Numbers of the errands; all by default.
    """
    from hardwon.runtime.agent import Agent

    from .errands import Errands, find_plan, list_errands

    every = list_errands(TEST)
    environment = Errands(is_stated=is_stated)
    agent = Agent(
        policy, library, environment, arm="step", max_steps=MAX_STEPS, seed=seed, planner=planner, learn=False
    )
    outcomes = []
    try:
        for number in range(len(every)) if errands is None else errands:
            episode = agent.run(TEST, number).trajectory
            is_done = bool(episode.success)
            outcomes.append((is_done, is_done and len(episode.steps) == len(find_plan(every[number]))))
    finally:
        agent.close()
    return outcomes


def summarize(agent: str, condition: str, seeds: Sequence[Outcomes]) -> Row:
    """Return the counts of an agent over all its seeds, with Wilson intervals of the shares."""
    right = [[is_right for _, is_right in outcomes] for outcomes in seeds]
    # Every errand with a precondition is followed by its twin.
    with_it, twins = [flags[::2] for flags in right], [flags[1::2] for flags in right]
    both = [[a and b for a, b in zip(x, y, strict=True)] for x, y in zip(with_it, twins, strict=True)]
    return {
        "agent": agent,
        "condition": condition,
        **{
            k: v
            for name, flags in zip(COUNTED, (with_it, twins, both), strict=True)
            for k, v in _count(name, flags).items()
        },
        "completed": sum(is_done for outcomes in seeds for is_done, _ in outcomes),
        "errands": sum(map(len, seeds)),
    }


def _count(name: str, seeds: Sequence[Sequence[bool]]) -> Row:
    """Return a share, its interval, and the counts of the seeds."""
    from hardwon.apps.experiment import interval

    counts, n = [sum(flags) for flags in seeds], sum(map(len, seeds))
    share = sum(counts) / n
    # Of a single share, this is the Wilson interval: errands and seeds count alike.
    bounds = [round(bound, 3) for bound in interval([share], n)]
    return {name: round(share, 3), f"{name}_ci95": bounds, f"{name}_seeds": counts}


def _format_row(row: Row) -> dict[str, str]:
    """Return the cells of a row: a share with its interval, and the counts of the seeds."""
    cells = {name: row[name] for name in ("agent", "condition")}
    for name in COUNTED:
        low, high = row[f"{name}_ci95"]
        cells[name.replace("_", " ")] = f"{row[name]:.2f} ({low:.2f} to {high:.2f}) {row[f'{name}_seeds']}"
    return cells | {"completed": f"{row['completed']} of {row['errands']}"}
