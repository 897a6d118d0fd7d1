"""Take episodes from the file that `hardwon proxy --tokens` wrote, with the outcomes of the proxy's library.

    player = RecordedPlayer(config, engine, prompts)
    rollouts = await player.play(specs, temperature=1.0, max_calls=20)

Episodes of the same task form a group: seed N is the Nth task of the file. Every row has the log-probabilities with
which its tokens were sampled, so an update weighs it by how much the weights have changed since.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError
from hardwon.runtime.integrations.tool_episode import normalize_message
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.outcomes import OutcomeKind
from hardwon.trainers.algorithms.samples import Rollout, pack_samples
from hardwon.trainers.config.parsing import import_callable
from hardwon.trainers.config.schema import TrainConfig
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.prompting.chat import ChatFormat

from .grading import FinishedEpisode, Reward, RewardFailed, call_reward
from .run import PolicyCall, build_rollout

_GRAMMARS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
"""Fields of vLLM's requests that bind an answer."""


@dataclass(slots=True)
class RecordedEpisode:
    """The model calls of one episode in the order of the file."""

    id: str
    task: str
    calls: list[PolicyCall] = field(default_factory=list)


@dataclass(slots=True)
class TokenLog:
    """The episodes of a token file."""

    episodes: dict[str, RecordedEpisode] = field(default_factory=dict)
    unusable: int = 0
    """Lines without the tokens of the prompt, of the answer, or their log-probabilities."""

    @property
    def tasks(self) -> dict[str, list[RecordedEpisode]]:
        """Return the episodes by task, in the order of the file."""
        groups: dict[str, list[RecordedEpisode]] = {}
        for episode in self.episodes.values():
            groups.setdefault(episode.task, []).append(episode)
        return groups


def read_token_log(path: Path) -> TokenLog:
    """Read a token file."""
    log = TokenLog()
    try:
        with path.open(encoding="utf-8") as file:
            for text in file:
                if text.endswith("\n"):  # the proxy may be writing the last line
                    _add_line(log, json.loads(text))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"program.recorded {path} cannot be read: {error!r:.200}. Give a file that `hardwon proxy --tokens` wrote."
        ) from error
    if not log.episodes:
        raise ConfigError(
            f"program.recorded {path} has no line with prompt_token_ids, token_ids and logprobs ({log.unusable} "
            "without). Record with a server that returns them, such as vLLM, and "
            """--extra-body '{"logprobs": true, "return_token_ids": true}'."""
        )
    return log


def _add_line(log: TokenLog, line: Mapping[str, Any]) -> None:
    prompt, tokens, logprobs = (line.get(name) or () for name in ("prompt_token_ids", "token_ids", "logprobs"))
    if not prompt or not tokens or len(tokens) != len(logprobs) or None in logprobs:
        log.unusable += 1
        return
    messages = [normalize_message(message) for message in line["request"]["messages"]]
    answer = normalize_message({"content": None, **line["message"], "role": "assistant"})
    # the hint of the proxy is the last message of a person, so the task is read from the first one
    task = next((message["text"] for message in messages if message["role"] == "user"), "")
    name = str(line["episode"])
    episode = log.episodes.setdefault(name, RecordedEpisode(name, task))
    size, is_free = len(tokens), not _is_bound(line["request"])
    call = PolicyCall(
        tuple(messages), answer, tuple(prompt), tuple(tokens), tuple(map(float, logprobs)), (is_free,) * size,
        (None,) * size, 0, line.get("finish_reason") != "length",
    )  # fmt: skip
    episode.calls.append(call)


def _is_bound(request: Mapping[str, Any]) -> bool:
    """Return whether a grammar bound the answer.

    The file does not say which tokens it allowed, so such an answer is read and not trained.
    """
    kind = (request.get("response_format") or {}).get("type", "text")
    bound = kind != "text" or request.get("tool_choice") not in (None, "auto", "none")
    return bound or any(request.get(name) for name in _GRAMMARS)


class RecordedPlayer:
    """Gives recorded episodes as rollouts."""

    def __init__(self, config: TrainConfig, engine: Engine, prompts: ChatFormat) -> None:
        """Read the file and the outcomes."""
        self._engine = engine
        self._outcome: OutcomeKind = config.outcome
        self._reward: Reward | None = (
            import_callable(config.program.reward, "program.reward") if config.program.reward else None
        )
        log = read_token_log(Path(config.program.recorded))
        _check_ids(log, len(prompts.tokenizer), config)
        self._tasks = [*log.tasks.values()]
        self._outcomes = dict(_read_outcomes(config.program.library, log, config.outcome))
        last = max(seed for _, seed in config.tasks.train.all)
        if last >= len(self._tasks):
            raise ConfigError(
                f"tasks.train.seeds is {config.tasks.train.seeds}, and {config.program.recorded} has "
                f"{len(self._tasks)} tasks; set tasks.train.seeds=0-{len(self._tasks) - 1}."
            )
        self._is_checked = False

    async def play(
        self,
        specs: Sequence[Spec],
        *,
        temperature: float,
        max_calls: int,
        snapshot: str = "",
        on_end: Callable[[], None] | None = None,
    ) -> list[Rollout]:
        """Return the recorded episodes of the specs: copy N is the Nth episode of a task, as far as there are any."""
        rollouts = []
        for spec in specs:
            episodes = self._tasks[spec.seed]
            if spec.copy < len(episodes):
                rollouts.append(self._build(spec, episodes[spec.copy], snapshot))
            if on_end is not None:
                on_end()
        if not self._is_checked:
            await self._check_probabilities(rollouts)
        return rollouts

    def _build(self, spec: Spec, episode: RecordedEpisode, snapshot: str) -> Rollout:
        outcome, failed, error = self._outcomes.get(episode.id), "", ""
        if self._reward is not None:
            last = episode.calls[-1]
            messages = tuple(dict(message) for message in (*last.messages, last.answer))
            finished = FinishedEpisode(episode.task, spec.seed, None, messages, "", outcome)
            try:
                outcome = call_reward(self._reward, finished)
            except RewardFailed as problem:
                outcome, failed, error = None, "reward_failed", str(problem)
        return build_rollout(
            spec, episode.calls, outcome, measure=self._outcome, failed=failed, error=error, snapshot=snapshot,
            meta={"episode": episode.id},
        )  # fmt: skip

    async def _check_probabilities(self, rollouts: Sequence[Rollout]) -> None:
        """Compare recorded log-probabilities with those of the model, before anything was learned."""
        self._is_checked = True
        rows = [row for rollout in rollouts[:8] for row in rollout.rows]
        if not rows:
            return
        advantages = {row.trace: [0.0] * len(rows) for row in rows}
        sequences = pack_samples(rows, advantages)
        again = await self._engine.logprobs(sequences, "policy")
        gaps = [
            abs(before - now)
            for sequence, values in zip(sequences, again, strict=True)
            for before, now, is_sampled in zip(sequence.logprobs, values, sequence.mask, strict=True)
            if is_sampled
        ]
        # Mean difference of log-probabilities, in nats per token, above which another model sampled the tokens.
        if gaps and fmean(gaps) > 1.0:
            raise ConfigError(
                f"the recorded log-probabilities differ by {fmean(gaps):.2f} nats per token from those of model.base: "
                "another model or another temperature sampled them. Set model.base to the model that answered."
            )


def _check_ids(log: TokenLog, size: int, config: TrainConfig) -> None:
    """Check that the tokenizer has all recorded tokens."""
    highest = max(max(call.prompt + call.tokens) for episode in log.episodes.values() for call in episode.calls)
    if highest >= size:
        raise ConfigError(
            f"program.recorded has the token {highest}, and the tokenizer of {config.model.base} has {size}; set "
            "model.base to the model that answered."
        )


def _read_outcomes(path: str, log: TokenLog, measure: OutcomeKind) -> Iterator[tuple[str, float]]:
    """Yield the outcomes of recorded episodes that the library has; a grade of a person replaces the first outcome."""
    if not path:
        return
    with ExperienceLibrary.open(path, read_only=True) as library:
        for name in log.episodes:
            try:
                episode = library.episodes.get(name)
            except LookupError:
                continue  # runs without tool calls are not recorded
            if episode.success is not None:
                yield name, float(episode.success) if measure == "success" else float(episode.score)
