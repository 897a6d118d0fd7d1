"""Play the episodes of a program: start it once for each, and collect what the policy answered.

player = ProgramPlayer(config, engine, prompts, context)
rollouts = await player.play(specs, temperature=1.0, max_calls=20)
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.memory.upkeep.text_files import read_text
from hardwon.trainers.algorithms.catalog import import_named
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.outcomes import OutcomeKind
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.schema import TrainConfig
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.prompting.chat import ChatFormat

from .grading import FinishedEpisode, Reward, RewardFailed, call_reward
from .process import Ended, run_command
from .prompts import ProgramPrompts
from .run import STEP_LIMIT, ProgramRun, build_rollout

PROGRAMS = 8
"""Programs that run at the same time, unless the settings say otherwise."""
OUTGROWN = "context_exceeded"
"""Why an episode is excluded whose prompt is longer than the model reads."""


class ProgramPlayer:
    """Starts a program for each episode, with the policy as its model."""

    def __init__(self, config: TrainConfig, engine: Engine, prompts: ChatFormat, context: int | None) -> None:
        """Create a player."""
        from .gateway import Gateway

        self._config, self._settings, self._engine = config, config.program, engine
        self._outcome: OutcomeKind = config.outcome
        self._inputs = _read_inputs(config)
        self._reward: Reward | None = (
            import_named(config.program.reward, "program.reward") if config.program.reward else None
        )
        self.gateway = Gateway(
            engine,
            ProgramPrompts(prompts.template),
            max_tokens=config.policy.max_tokens,
            context=context,
            port=config.program.port,
        )

    async def play(
        self,
        specs: Sequence[Spec],
        *,
        temperature: float,
        max_calls: int,
        snapshot: str = "",
        on_end: Callable[[], None] | None = None,
    ) -> list[Rollout]:
        """Run the program for every episode, several at once, and return the rollouts in order."""
        room = asyncio.Semaphore(self._config.run.at_once or PROGRAMS)

        async def play_one(spec: Spec) -> Rollout:
            async with room:
                run = ProgramRun(
                    spec, f"hw-{secrets.token_hex(16)}", self.gateway.open_record(), temperature, max_calls,
                    self._inputs[spec.seed] if self._inputs is not None else None,
                )  # fmt: skip
                rollout = await self._play(run, snapshot)
            if on_end is not None:
                on_end()
            return rollout

        async with self.gateway.serve():
            return list(await asyncio.gather(*map(play_one, specs)))

    async def _play(self, run: ProgramRun, snapshot: str) -> Rollout:
        self.gateway.open(run)
        try:
            ended = await run_command(self._settings.command, self._describe(run), self._settings.timeout_s)
        finally:
            await self.gateway.close(run)
        outcome, failed, error = await self._grade(run, ended)
        return build_rollout(
            run.spec,
            run.calls,
            outcome,
            measure=self._outcome,
            failed=failed,
            error=error,
            ending=STEP_LIMIT if run.was_limited else "",
            snapshot=snapshot,
        )

    def _describe(self, run: ProgramRun) -> dict[str, str]:
        """Return the environment variables that tell a program its episode and its model."""
        spec = run.spec
        url = self._settings.urls.get(spec.arm, self.gateway.url)
        return {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_BASE": url,
            "OPENAI_API_KEY": run.key,
            "HARDWON_OUTCOME_URL": f"{self.gateway.url}/outcome",
            "HARDWON_EPISODE": spec.session,
            "HARDWON_TASK": spec.task,
            "HARDWON_SEED": str(spec.seed),
            "HARDWON_INPUT": "" if run.instance is None else json.dumps(run.instance, ensure_ascii=False),
        }

    async def _grade(self, run: ProgramRun, ended: Ended) -> tuple[float | None, str, str]:
        """Return the outcome of an episode, why it is excluded, and the error that excluded it."""
        failed = OUTGROWN if run.was_outgrown and run.reported is None else ended.problem
        if failed and run.reported is None:
            broken = self._settings.broken
            error = f"{failed}: {ended.output or self._settings.command}"
            return broken, "" if broken is not None else failed, error
        if self._reward is None or not run.calls:
            return run.reported, "", ""
        last = run.calls[-1]
        episode = FinishedEpisode(
            run.spec.task,
            run.spec.seed,
            run.instance,
            tuple(dict(message) for message in (*last.messages, last.answer)),
            ended.output,
            run.reported,
        )
        try:
            return await asyncio.to_thread(call_reward, self._reward, episode), "", ""
        except RewardFailed as error:
            return None, "reward_failed", str(error)


def _read_inputs(config: TrainConfig) -> list[Any] | None:
    """Return the inputs of the task instances by seed, or None if there are none."""
    path = config.program.inputs
    if not path:
        return None
    try:
        lines = read_text(path).splitlines()
        inputs = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"program.inputs {path} cannot be read: {error}. Give a file of JSON lines.") from error
    for name, worlds in (("train", config.tasks.train), ("eval", config.tasks.eval)):
        last = max(seed for _, seed in worlds.all)
        if last >= len(inputs) and (name == "train" or config.eval.every):
            raise ConfigError(
                f"tasks.{name}.seeds is {worlds.seeds}, and {path} has {len(inputs)} lines; use seeds from 0 to "
                f"{len(inputs) - 1}."
            )
    return inputs
