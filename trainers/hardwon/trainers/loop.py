"""The loop of a run: draw tasks, play groups, assign credit, update one role, reload the engine.

    loop = TrainingLoop(session, player, position, metrics, screen)
    await loop.run()

The loop starts from any position and saves checkpoints. `trainer` opens what it drives.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from hardwon.runtime.interfaces.arms import CONTROL

from . import feasibility, learning
from .algorithms import parallel
from .algorithms.composers import Composer, ComposerParts, open_composer
from .algorithms.samplers import TaskSampler, open_sampler
from .algorithms.samplers.balance import Balance
from .algorithms.samples import Rollout
from .checkpoint import HISTORY, Checkpoints, keep_weights, random_states
from .config.kinds import TRIES
from .config.schema import TrainConfig
from .console import Screen
from .engines.factory import get_tokens_read
from .evaluate import collect_episodes, flatten_report, summarise, summarize_composed, summarize_episodes
from .metrics import Metrics
from .player import Player
from .roles.base import PolicyRole, Role
from .rollouts.explore import Task
from .session import Session
from .workers.prefetcher import Prefetcher

DRIFT = 0.05
"""Divergence of the learner from the weights that played, in nats per token, above which a run warns."""


@dataclass(slots=True)
class Position:
    """The position of a run, without its weights."""

    iteration: int = 0
    drawn: int = 0
    """Environment seeds drawn so far by the uniform order."""
    sampler: dict[str, Any] = field(default_factory=dict)
    """State of another sampler, if the settings name one."""
    composer: dict[str, Any] = field(default_factory=dict)
    """State of the composer, if the settings name one."""
    balance: dict[str, Any] = field(default_factory=dict)
    """State of the choice of temperatures, if the settings have one."""
    turn: int = 0
    """Index of the role whose turn it is."""
    in_turn: int = 0
    """Updates that this role has made in its turn."""
    evaluated: int = -1
    """Iteration of the last evaluation, or -1."""
    first_evaluation: dict[str, Any] = field(default_factory=dict)
    last_evaluation: dict[str, Any] = field(default_factory=dict)


class TrainingLoop:
    """The iterations of one run, from its current position to its end."""

    def __init__(self, session: Session, player: Player, position: Position, metrics: Metrics, screen: Screen) -> None:
        self.session, self.player, self.position = session, player, position
        self.metrics, self.screen = metrics, screen
        self.config = session.config
        self.checkpoints = Checkpoints(session.out / "checkpoints", self.config.run.keep)
        self.worlds = open_sampler_of(session)
        # a uniform order is restored by its position alone
        if not self.config.tasks.sampler:
            self.worlds.load_state_dict({"count": position.drawn})
        elif position.sampler:
            self.worlds.load_state_dict(position.sampler)
        self.composer = open_composer_of(session)
        if self.composer is not None and position.composer:
            self.composer.load_state_dict(position.composer)
        self.balance = open_balance_of(self.config, position.balance)
        self.saved = -1
        """Iteration of the newest checkpoint, or -1."""
        self.warming: Path | None = None
        """Checkpoint within the warm start that the run continues from, or None."""
        self.stopping = False
        lag, last = self.config.rollouts.max_lag, self.config.run.iterations
        self._prefetcher = Prefetcher(self._play_groups, lag, last, self._count_drawn) if lag else None
        self._signal = feasibility.SignalWatch()
        self._actions = feasibility.ActionWatch(feasibility.list_mechanisms(self.config))

    @contextmanager
    def stop_on_sigterm(self) -> Iterator[None]:
        """Stop the run cleanly at the first SIGTERM; the second one kills the process."""

        def stop(*_: object) -> None:
            self.stopping = True
            # The default handler is back, so a second SIGTERM kills a run that hangs.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.screen.tell_from_signal(
                "stopping: finishing the current iteration or update, then saving a checkpoint."
            )

        try:
            before: Any = signal.signal(signal.SIGTERM, stop)
        except ValueError:  # signal handlers can only be installed in the main thread
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    async def run(self) -> None:
        """Iterate until the end or a stop request; evaluate and save on schedule."""
        if not self.position.iteration:
            self._keep_history(0)
        self.screen.begin(self.position.iteration)
        while True:
            iteration, is_last = self.position.iteration, self.position.iteration >= self.config.run.iterations
            if (
                not self.stopping
                and self._is_due(self.config.eval.every, is_last)
                # a run that resumes right after an evaluation must not repeat it
                and self.position.evaluated != iteration
            ):
                # save at once: only a checkpoint of the evaluated iteration can carry the score
                await self._evaluate()
                self.save()
            elif self.saved != iteration and (self.stopping or self._is_due(self.config.run.save_every, is_last)):
                self.save()
            if is_last or self.stopping:
                break
            await self._iterate()
        if self._prefetcher is not None:
            await self._prefetcher.cancel()
        if self.stopping and not is_last:
            self.screen.tell(f"stopped and saved after iteration {iteration}; add --resume to continue.")

    def _is_due(self, every: int, last: bool) -> bool:
        """Return whether something that happens every `every` iterations is due now."""
        return every > 0 and (last or self.position.iteration % every == 0)

    async def _iterate(self) -> None:
        """Run one iteration: play, assign credit, update one role, reload the engine, update the library.

        Roles that read episodes do so in the background while the groups are played.
        """
        began, number = time.perf_counter(), self.position.iteration + 1
        self._start_workers()
        self._follow_schedule()
        self.player.iteration = self.position.iteration
        self.player.snapshot = f"library@{self.position.iteration}" if self.config.uses_library else ""
        read = get_tokens_read(self.session.engine)
        for role in self.session.roles.values():
            role.read(f"{self.config.run.seed}/{number}")
        if self._prefetcher is None:
            played, learnable, group_counts = await self._play_groups(number)
        else:
            played, learnable, group_counts = await self._prefetcher.take(number)
        if number == 1:
            feasibility.check_episodes(self.session, played)
        composed, played = [rollout for rollout in played if not rollout.is_plain], list_plain(played)
        rollout_seconds = time.perf_counter() - began
        rollout_tokens = get_tokens_read(self.session.engine) - read  # the trials come later, and take their own time
        learning.distribute(self.session, learnable)
        metrics = {
            **summarize_episodes(played, list(self.config.arms), self.config.outcome),
            **summarize_composed(composed),
            **group_counts,
        }
        if self.config.schedule:
            finished = [rollout.trajectory.ending for rollout in played if not rollout.failed]
            # an episode that a short horizon cuts off counts as a loss
            metrics["share/cut"] = sum(ending == "step_limit" for ending in finished) / max(1, len(finished))
        metrics.update(await learning.update_library(self.session, number, played))
        metrics.update(await self._try_candidates(number))
        metrics.update(self._measure_lag(learnable))
        if (chosen := self._select_role()) is not None:
            # in a thread of its own if workers play meanwhile: their requests are answered in this one
            update = chosen.update() if self._prefetcher is None else await asyncio.to_thread(chosen.update)
            metrics.update({f"{chosen.name}/{name}": value for name, value in update.items()})
            version = self.session.engine.versions()[chosen.name] + 1
            self.session.engine.load_adapter(chosen.name, version, chosen.weights())
        self._keep_history(number)
        if self.session.sources:
            metrics.update({**self.session.sources.drain_metrics(), **self.session.sources.learn(learnable)})
        # Advance only after the update: a checkpoint must describe finished iterations.
        self.position.iteration = number
        metrics.update(self._observe(learnable))
        if self.player.pool is not None:
            metrics.update(self.player.pool.drain_metrics())
            metrics["rollouts/learner_idle"] = rollout_seconds / max(time.perf_counter() - began, 1e-9)
            self._warn_of_mismatch(metrics)
        metrics["tokens_per_second"] = rollout_tokens / max(rollout_seconds, 1e-9)
        metrics["seconds"] = time.perf_counter() - began
        idle, idle_warning = self._actions.update(metrics, last=number >= self.config.run.iterations)
        self.metrics.log(number, metrics | idle)
        self.screen.show(number, metrics)
        for warning in (self._signal.update(metrics, self.config.run.groups), idle_warning):
            if warning is not None:
                self.screen.warn(warning)

    async def _try_candidates(self, number: int) -> dict[str, float]:
        """Let the roles that try candidates do so in episodes of the first arm that shows all that is recalled."""
        metrics: dict[str, float] = {}
        for arm in [arm for arm in self.config.list_arms() if arm.memory in TRIES][:1]:
            play = partial(self.player.play_trials, arm=arm, temperature=self._get_temperature())
            for role in self.session.roles.values():
                tried = await role.try_candidates(play, arm.name, f"{self.config.run.seed}/{number}")
                metrics.update({f"{role.name}/{name}": value for name, value in tried.items()})
        return metrics

    def _measure_lag(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Return how many rows are how many updates behind the weights that learn from them."""
        if self._prefetcher is None:
            return {}
        now = self.session.engine.versions()["policy"]
        lags = Counter(now - row.version for rollout in rollouts for row in rollout.rows)
        return {f"rollouts/lag_{lag}": float(number) for lag, number in sorted(lags.items())}

    def _warn_of_mismatch(self, metrics: Mapping[str, float]) -> None:
        """Warn if the learner is far from the weights that played."""
        mismatch = metrics.get("policy/mismatch", 0.0)
        if self._prefetcher is not None and mismatch > DRIFT:
            self.screen.warn(
                f"the learner is {mismatch:.3f} nats per token from the weights that played, above "
                f"{DRIFT}; lower rollouts.max_lag or the learning rate."
            )

    def _keep_history(self, iteration: int) -> None:
        """Keep the weights of every `run.history`-th iteration, and those of the start."""
        every = self.config.run.history
        if every and iteration % every == 0:
            weights = {name: role.state_dict()["weights"] for name, role in self.session.roles.items()}
            keep_weights(self.session.out / HISTORY, iteration, weights)

    def _follow_schedule(self) -> None:
        """Give the policy the loss of this iteration."""
        if not self.config.schedule and self.balance is None:
            return
        policy, iteration = self.session.roles["policy"], self.position.iteration
        if isinstance(policy, PolicyRole):
            policy.change_loss(
                entropy=self.config.get_scheduled("roles.policy.loss.entropy", iteration),
                temperature=self._get_temperature(),
            )

    def _get_temperature(self) -> float:
        """Return the temperature of the rollouts of this iteration."""
        if self.balance is not None:
            return self.balance.temperature
        return self.config.get_scheduled("run.temperature", self.position.iteration)

    def _start_workers(self) -> None:
        """Have the other processes, if any, load the current checkpoint and join the updates."""
        workers = parallel.get_team()
        if workers is not None and not workers.active:
            # Workers load their state from a checkpoint, so there must be one of this iteration.
            if self.saved != self.position.iteration:
                self.save()
            workers.broadcast_job(("start", str(self.checkpoints.latest())))
            workers.active = True

    async def _play_groups(self, number: int) -> tuple[list[Rollout], list[Rollout], dict[str, float]]:
        """Return the groups as first drawn, the rollouts to learn from, and counts.

        Dynamic sampling: a group without a learning signal for any role is replaced by a group of another task
        instance, at most `rerolls` times. Remaining groups without a signal still count in the loss denominator.
        """
        groups = await self._play(self.worlds.draw(self.config.run.groups), f"{self.config.run.seed}/{number}")
        # rerolling selects groups by outcome, so success rates and the library use the first draw
        first = [rollout for group in groups.values() for rollout in group]
        sampled, rerolled = count_choices(first), 0
        for again in range(1, self.config.run.rerolls + 1):
            without_signal = [world for world, group in groups.items() if not self._is_wanted(group)]
            # groups are keyed by task instance: a repeated one would overwrite its own group
            replacements = self.worlds.draw(len(without_signal), without=list(groups))
            if not replacements:
                break
            rerolled += len(replacements)
            # Near the end of a small pool there may be fewer replacements than groups without a signal.
            for world in without_signal[: len(replacements)]:
                del groups[world]
            again_played = await self._play(replacements, f"{self.config.run.seed}/{number}.{again}")
            sampled += sum(map(count_choices, again_played.values()))
            groups.update(again_played)
        remaining = sum(not self._is_wanted(group) for group in groups.values())
        counts = {
            "tokens_sampled": float(sampled),
            "groups_rerolled": float(rerolled),
            "groups_without_signal": float(remaining),
        }
        return first, [rollout for group in groups.values() for rollout in group], counts

    async def _play(self, worlds: Sequence[Task], salt: str) -> dict[Task, list[Rollout]]:
        """Play one group per task instance and return the rollouts by instance."""
        rollouts = await self.player.play(
            worlds,
            self.config.list_arms(),
            salt=salt,
            temperature=self._get_temperature(),
            learning=True,
            max_steps=int(self.config.get_scheduled("environment.max_steps", self.position.iteration)),
            composer=self.composer,
            read=self._read_for_composer,
        )
        if self.session.sources:
            # before any role is asked: whether a group has a signal may depend on what the sources find
            rollouts = await self.session.sources.read(rollouts, without=self.config.tasks.needs)
        if self.config.tasks.sampler:
            rollouts = [replace(rollout, weight=self.worlds.weigh(_find_world(rollout))) for rollout in rollouts]
        played = group_by_world(rollouts)
        return {world: played.get(world, []) for world in worlds}

    async def _read_for_composer(self, rollouts: list[Rollout]) -> list[Rollout]:
        """Return the rollouts of a round with the signals that the composer needs."""
        needs = self.config.tasks.needs
        return await self.session.sources.read(rollouts, only=needs) if needs else rollouts

    def _observe(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Show the sampler and the composer the groups of an iteration, and keep their states in the position."""
        metrics = dict(self.worlds.observe(group_by_world(list_plain(rollouts))))
        if self.balance is not None:
            metrics.update(self.balance.observe([*group_by_world(list_plain(rollouts)).values()]))
            self.position.balance = self.balance.state_dict()
        if self.composer is not None:
            self.composer.observe(rollouts)
            self.position.composer = self.composer.state_dict()
            metrics.update(self.composer.drain_metrics())
        if self.config.tasks.sampler:
            self.position.sampler = self.worlds.state_dict()
        else:
            # a run that resumes plays again what was played ahead
            ahead = None if self._prefetcher is None else self._prefetcher.get_state(self.position.iteration + 1)
            self.position.drawn = self._count_drawn() if ahead is None else ahead
        return dict(metrics)

    def _count_drawn(self) -> int:
        """Return the number of environment seeds drawn so far by the uniform order."""
        return int(self.worlds.state_dict()["count"])

    def _is_wanted(self, group: Sequence[Rollout]) -> bool:
        """Return whether any role can learn from a group."""
        return any(role.wants(group) for role in self.session.roles.values())

    def _select_role(self) -> Role | None:
        """Return the role to train now: the current one until its phase ends, then the next that is ready.

        A frozen role, or one without anything to learn from, takes no turn and gets no new version.
        """
        roles, position = list(self.session.roles.values()), self.position
        if position.in_turn >= self.config.roles[roles[position.turn].name].phase:
            position.turn, position.in_turn = (position.turn + 1) % len(roles), 0
        for ahead in range(len(roles)):
            at = (position.turn + ahead) % len(roles)
            is_frozen = not self.config.roles[roles[at].name].learner.lr
            if not is_frozen and roles[at].ready():
                if ahead:
                    position.turn, position.in_turn = at, 0
                position.in_turn += 1
                return roles[at]
        return None

    async def _evaluate(self) -> None:
        """Play the held-out task instances in every arm, then log the results."""
        iteration = self.position.iteration
        rollouts = await self.player.play(
            self.config.tasks.eval.all,
            self.config.list_evaluated_arms(),
            salt=f"eval/{self.config.run.seed}",
            temperature=self.config.eval.temperature,
        )
        report = summarise(collect_episodes(rollouts))
        self.metrics.log(iteration, flatten_report(report), kind="eval")
        self.position.evaluated, self.position.last_evaluation = (
            iteration,
            {arm: asdict(part) for arm, part in report.items()},
        )
        self.position.first_evaluation = self.position.first_evaluation or self.position.last_evaluation
        summary = ", ".join(
            f"{arm} {part.outcome:.2f} ({part.low:.2f} to {part.high:.2f})" for arm, part in report.items()
        )
        self.screen.tell(f"evaluation after iteration {iteration}, {self.config.outcome}: {summary}")

    def _score_checkpoint(self) -> float | None:
        """Return the mean outcome of the arms with memory, or of control; None without a current evaluation."""
        if self.position.evaluated != self.position.iteration:
            return None
        outcomes = {arm: part["outcome"] for arm, part in self.position.last_evaluation.items()}
        current = [outcomes[name] for name in self.config.arms if name != CONTROL]
        return fmean(current or outcomes.values())

    def save(self) -> None:
        """Save a checkpoint of the current iteration."""
        self.checkpoints.save(self.position.iteration, self.write_checkpoint, self._score_checkpoint())
        self.saved = self.position.iteration

    def write_checkpoint(self, folder: Path) -> None:
        """Write the session, the position and the random states into the folder of a checkpoint."""
        import torch

        self.session.save(folder)
        torch.save({"state": asdict(self.position), "random": random_states()}, folder / "run.pt")


def open_sampler_of(session: Session) -> TaskSampler:
    """Return the sampler of a session's training instances."""
    config = session.config
    # the draws of two iterations are fixed
    most = 2 * config.run.groups * (1 + config.run.rerolls)
    return open_sampler(
        config.tasks.sampler,
        config.tasks.train.all,
        seed=config.run.seed,
        most=most,
        reference=session.explorer.source,
    )


def _find_world(rollout: Rollout) -> Task:
    """Return the task instance of a rollout."""
    task, _, seed = rollout.group.rpartition("#")
    return task, int(seed)


def group_by_world(rollouts: Sequence[Rollout]) -> dict[Task, list[Rollout]]:
    """Return the rollouts by task instance, whatever the size of the groups."""
    groups: dict[Task, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(_find_world(rollout), []).append(rollout)
    return groups


def open_composer_of(session: Session) -> Composer | None:
    """Return the composer of a session's groups; None plays every episode from its beginning."""
    paths = session.demonstrations
    parts = ComposerParts(seed=session.config.run.seed, demonstrate=paths.find, walk=paths.walk)
    return open_composer(session.config.tasks.compose, parts)


def open_balance_of(config: TrainConfig, state: Mapping[str, Any]) -> Balance | None:
    """Return the choice of temperatures of a run, at a state of it; None keeps that of the settings."""
    if not config.run.balance:
        return None
    balance = Balance(start=config.run.temperature)
    if state:
        balance.load_state_dict(state)
    return balance


def list_plain(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the rollouts of episodes that a composer did not begin in another way.

    Only these are reported as success, stored in the library and shown to other roles and the sampler: an episode that
    began near its goal says nothing about the task as it is.
    """
    return [rollout for rollout in rollouts if rollout.is_plain]


def count_choices(rollouts: Sequence[Rollout]) -> int:
    """Return the tokens that were sampled where another one was possible: all that training can change."""
    return sum(sum(row.mask) for rollout in rollouts for row in rollout.rows)
