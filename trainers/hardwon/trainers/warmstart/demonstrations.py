"""The episodes that a warm start imitates: explored ones as they are, or played again in the run's own prompts."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hardwon.memory.errors import CannotLearn
from hardwon.runtime.interfaces.arms import Arm
from hardwon.trainers.algorithms.imitation import Examples, ask_all, build_examples, clean_trajectory
from hardwon.trainers.algorithms.samples import PackedSequence, pack_samples
from hardwon.trainers.config.kinds import LESSONS, PASTES, RECALLS
from hardwon.trainers.config.schema import CONTROL
from hardwon.trainers.console import EpisodeCount
from hardwon.trainers.loop import TrainingLoop
from hardwon.trainers.rollouts.demonstration import find_path
from hardwon.trainers.rollouts.explore import Task, way
from hardwon.trainers.rollouts.renaming import Names, Rename, list_actions
from hardwon.trainers.rollouts.rollout import Spec


def demonstrate(loop: TrainingLoop, config: Examples) -> list[PackedSequence]:
    """Return the sequences to imitate: those of the exploring episodes that are worth it."""
    session, outcome = loop.session, loop.config.outcome
    if session.config.model.is_compact:
        return build_examples(
            session.explorer.trajectories(session.config.explore.worlds),
            session.prompts.rows,
            config,
            memory=lambda episode: way(episode, outcome),
            outcome=outcome,
        )
    examples = _leave_out_long(loop, _play_again(loop, config))
    mean, longest = sum(map(len, examples)) / max(1, len(examples)), max(map(len, examples), default=0)
    loop.screen.tell(f"warm start: {len(examples)} demonstrations of {mean:,.0f} tokens, the longest of {longest:,}")
    return examples


def measure_recalled(loop: TrainingLoop) -> int:
    """Return the tokens of the longest turn of explored episodes, played again with what the arms recall.

    Episodes that neither succeed nor reach the step limit cannot be played to an end, so they are left out.
    """
    session, steps = loop.session, loop.config.environment.max_steps
    arms = [_show_all(arm) for arm in loop.config.list_arms() if arm.memory in RECALLS]
    if not arms or session.context is None or session.config.model.is_compact:
        return 0
    if getattr(session.environment, "branches", "replay") is None:  # its actions must not be repeated
        return 0
    explored = [
        (len(episode.steps), world, tuple(step.action for step in episode.steps[:steps]))
        for world in session.explorer.tasks or loop.config.explore.worlds.all[:4]
        for episode in session.explorer.explored(world)
        if episode.success or len(episode.steps) >= steps
    ]
    longest = {world: actions for _, world, actions in sorted(explored)[-4:]}
    rollouts = asyncio.run(loop.player.demonstrate(longest, dict.fromkeys(arms, 1)))
    return max((len(row.prompt) + len(row.completion) for rollout in rollouts for row in rollout.rows), default=0)


def _show_all(arm: Arm) -> Arm:
    """Return an arm that shows all that is recalled, also where the guide is to be asked."""
    return arm if arm.memory in LESSONS | PASTES else replace(arm, memory="library")


def _leave_out_long(loop: TrainingLoop, examples: Sequence[PackedSequence]) -> list[PackedSequence]:
    """Return the examples that the model can read, and warn of the others."""
    limit = loop.session.context
    readable = [example for example in examples if limit is None or len(example) <= limit]
    if len(readable) < len(examples):
        text = (
            f"{len(examples) - len(readable)} of {len(examples)} demonstrations are left out: the longest has "
            f"{max(map(len, examples)):,} tokens, and the model reads {limit:,}. Choose a base with a longer context, "
            "or shorter episodes (warmstart.examples.max_turns)."
        )
        if not readable:
            raise CannotLearn(text)
        loop.screen.warn(text)
    return readable


def _play_again(loop: TrainingLoop, config: Examples) -> list[PackedSequence]:
    """Play the exploring episodes worth imitating again, with and without recall, as examples.

    Of the copies of an episode, `Examples.memory_share` recall from the library, dealt in turn to the arms that show
    different things of it.
    """
    paths: dict[Task, tuple[str, ...]] = {}
    environment, worlds = loop.session.environment, loop.config.explore.worlds.all
    count = EpisodeCount(len(worlds), loop.screen.tell, text="looked for demonstrations in {} of {} task instances")
    for world in worlds:
        best = loop.session.explorer.source(*world)
        clean = [step.action for step in clean_trajectory(best).steps] if best is not None else []
        whole = [step.action for step in best.steps if step.action] if best is not None else []
        path = find_path(environment, world, clean, whole)
        if path and (config.max_turns is None or len(path) <= config.max_turns):
            paths[world] = path
        count()
    # with all that is recalled, also where the guide is to be asked later: it has learned nothing yet
    recalling = [_show_all(arm) for arm in loop.config.list_arms() if arm.memory in RECALLS - PASTES]
    in_library = {world for worlds in loop.config.library.explored.values() for world in worlds.all} & {*paths}
    if recalling and in_library:
        loop.screen.warn(
            f"{len(in_library)} of {len(paths)} demonstrated task instances are in library.explored: their hints lack "
            "the past return of actions, which would count the instance itself. Give the library other seeds."
        )
    with_memory = config.count_with_memory() if recalling else 0
    kinds = list({arm.memory: arm for arm in reversed(recalling)}.values())[::-1]
    dealt = Counter(kinds[n % len(kinds)] for n in range(with_memory))
    arms = {Arm(CONTROL): config.copies - with_memory, **dealt}
    rename = _rename_copies(loop, paths, {arm.name: round(config.renamed * copies) for arm, copies in dealt.items()})
    arms = {arm: copies for arm, copies in arms.items() if copies}
    rollouts = asyncio.run(loop.player.demonstrate(paths, arms, rename))
    if lost := Counter(rollout.failed for rollout in rollouts if rollout.failed):
        reasons = ", ".join(f"{reason} ({count})" for reason, count in lost.most_common())
        loop.screen.warn(f"{lost.total()} of {len(rollouts)} demonstrations cannot be played again: {reasons}.")
    samples = [ask_all(sample) for rollout in rollouts for sample in rollout.rows]
    turns = {sample.trace: [1.0] * (sample.turn + 1) for sample in samples}
    return pack_samples(samples, turns)


def _rename_copies(
    loop: TrainingLoop, paths: Mapping[Task, Sequence[str]], copies: Mapping[str, int]
) -> Callable[[Spec], Rename]:
    """Return a function that renames the things in the first copies of each demonstration in an arm, by its name."""
    names = Names(list_actions(loop.session.environment, paths) if any(copies.values()) else ())
    if any(copies.values()) and not any(len(group) > 1 for group in names.groups):
        loop.screen.warn(
            "warmstart.examples.renamed changes nothing: no listed actions of the demonstrations differ by a name. "
            "Set it to 0."
        )

    def rename(spec: Spec) -> Rename:
        if spec.copy >= copies.get(spec.arm, 0):
            return str
        return names.shuffle(random.Random(f"{loop.config.run.seed}:{spec.task}:{spec.seed}:{spec.copy}"))

    return rename
