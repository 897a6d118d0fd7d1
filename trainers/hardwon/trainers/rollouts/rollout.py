"""Rollouts: groups of episodes in the runtime's own loop, with every sampled token kept.

A rollout is one `Agent.arun` with a policy that samples from the engine. All episodes of a batch run
concurrently. Episodes that fail because of the environment or the policy are labeled, counted and
excluded; they do not count as a reward of 0.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hardwon.memory import Item, Reasons, Trajectory
from hardwon.memory.errors import CannotBranch, PolicyFailure
from hardwon.memory.records import Step
from hardwon.runtime import Agent
from hardwon.runtime.guidance.base import Guidance, Hint, apropose_hint
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.llm import prompts as messages
from hardwon.runtime.llm.conversation import Conversation, Conversations
from hardwon.trainers.algorithms.composers.spec import Spec as Spec
from hardwon.trainers.algorithms.outcomes import OutcomeKind, mark_outcome
from hardwon.trainers.algorithms.samples import Ids, Rollout, Sample, Tried, WordChoice, compute_anchor
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.engines.base import Completion, Engine, Request
from hardwon.trainers.prompting.base import PromptFormat
from hardwon.trainers.prompting.chat import ChatFormat

from .answers import Answers, UnusableAnswer
from .opening import open_opening
from .speech import Speech, join


@dataclass(slots=True)
class _Episode:
    """The samples of a running episode, and whether its text outgrew the model."""

    spec: Spec
    rows: dict[int, tuple[str, Sample]] = field(default_factory=dict)
    """The chosen action and its sample, by turn."""
    outgrown: bool = False
    tried: Tried = ""
    """Whether the candidate of the spec was shown."""
    consulted: list[WordChoice] = field(default_factory=list)
    """The questions to the guide so far."""

    def keep(self, turn: int, action: str, sample: Sample) -> None:
        """Keep the sample of a turn, in place of those of superseded attempts at it and at later turns."""
        self.rows = {number: row for number, row in self.rows.items() if number < turn}
        self.rows[turn] = action, sample

    def collect(self, steps: Sequence[Step]) -> tuple[Sample, ...]:
        """Return the samples whose action is the one that ran."""
        ran = [step.action for step in steps]
        return tuple(sample for t, (action, sample) in self.rows.items() if t < len(ran) and ran[t] == action)


NO_START = "cannot_branch"
"""Why an episode is excluded whose prefix did not lead back to where it was taken from."""
OUTGROWN = "context_exceeded"
"""Why an episode is excluded whose prompt is longer than the model reads."""
_EPISODE: ContextVar[_Episode] = ContextVar("hardwon_episode")
"""The episode of the running asyncio task."""


def current_episode() -> _Episode:
    """Return the episode of the running asyncio task."""
    return _EPISODE.get()


def current_session() -> str:
    """Return the session name of the episode that the current task runs, or an empty string."""
    episode = _EPISODE.get(None)
    return "" if episode is None else episode.spec.session


def current_instance() -> tuple[str, int] | None:
    """Return the split and the seed that the current asyncio task plays, or None outside of a rollout."""
    episode = _EPISODE.get(None)
    return None if episode is None else (episode.spec.task, episode.spec.seed)


def current_candidate() -> Item | None:
    """Return the item that the current asyncio task tries, or None."""
    episode = _EPISODE.get(None)
    return None if episode is None else episode.spec.candidate


def enter_episode(spec: Spec) -> None:
    """Make a spec the episode of the current task, so that its requests share one session of the engine."""
    _EPISODE.set(_Episode(spec))


class GivenGuidance:
    """Guidance that shows the memory of the episode's `Spec` at its start and uses no library."""

    def propose(self, context: Context) -> Hint | None:
        """Return the memory of the spec as a hint, or None."""
        memory = _EPISODE.get().spec.memory
        return Hint(memory) if memory else None


class GivenAndRecalled:
    """Guidance that shows what the library recalls and, at the start, the memory of the episode's `Spec` before it."""

    def __init__(self, retrieval: Guidance) -> None:
        self._retrieval = retrieval

    async def apropose(self, context: Context) -> Hint | None:
        """Return the hint of the retrieval, after the memory of the spec at the first step."""
        recalled = await apropose_hint(self._retrieval, context)
        spec = _EPISODE.get().spec
        memory = spec.memory if not (spec.parent and spec.prefix) and len(context.history) == len(spec.prefix) else None
        if not memory:
            return recalled
        return Hint(memory) if recalled is None else replace(recalled, text=f"{memory}\n{recalled.text}".strip())

    def propose(self, context: Context) -> Hint | None:
        """Run `apropose` for a loop without asyncio."""
        return asyncio.run(self.apropose(context))


class TokenPolicy:
    """A policy that reads an episode in a prompt format and samples its actions from an engine."""

    name = "tokens"
    reads: Literal["values", "text"] = "text"

    def __init__(
        self,
        engine: Engine,
        prompts: PromptFormat,
        *,
        temperature: float = 1.0,
        snapshot: str = "",
        role: str = "policy",
        settings: PolicySettings | None = None,
        context: int | None = None,
    ) -> None:
        """Create a policy on an engine.

        Args:
            engine: Generates the tokens.
            prompts: Encodes the episode and the actions.
            temperature: Sampling temperature; 0 is greedy.
            snapshot: Name of the library version in use, stored with every sample.
            role: The engine's role whose weights act.
            settings: The limits of an answer, the history, and thinking before acting; default: those of the class.
            context: Longest sequence that the model reads, in tokens; None for no limit.

        Raises:
            ConfigError: The policy is to think, and the prompts have no lines.
        """
        self._context, how = context, settings or PolicySettings()
        self._engine, self._prompts = engine, prompts
        self._answers = Answers(prompts, max_tokens=how.max_tokens)
        self._opening = open_opening(prompts, how)
        is_silent = self._opening is not None and not isinstance(prompts, ChatFormat)
        self._speech = Speech(prompts, how.spoken) if how.spoken and not is_silent else None
        self._is_predicted = how.speech == "predicted"
        self._log = Conversations(how.build_prompts())
        self._temperature, self._role = temperature, role
        self.snapshot = snapshot
        """Name of the library version in use; stored with every sample."""

    async def adecide(self, context: Context) -> Decision:
        """Sample an action, and keep its sample with the episode.

        Where actions are listed, it is one that is not forbidden, or any of them if all are. Otherwise it is a call of
        one of the context's tools, or free text if there are none.

        Raises:
            UnusableAnswer: The answer is no action, such as a call that the limit cut. Its sample is kept.
            PolicyFailure: The prompt is longer than the model reads.
        """
        is_standalone = _EPISODE.get(None) is None
        episode = _Episode(Spec("", 0)) if is_standalone else _EPISODE.get()
        turn, chat = len(context.history), self._advance(episode.spec, context)
        rng = self._open_chance(episode.spec, turn, len(context.forbidden))
        prompt = self._prompts.open_prompt(chat, context)
        forced = 0 if self._speech is None else len(self._speech.line_end)
        room = None if self._context is None else self._context - len(prompt) - forced
        form = self._answers.open(context, room, calls=self._prompts.call_form(chat))
        request = Request(
            prompt,
            self._role,
            form.allowed,
            max_tokens=form.max_tokens,
            stop=form.stop,
            temperature=self._temperature if episode.spec.temperature is None else episode.spec.temperature,
            session="" if is_standalone else episode.spec.session,
            chance=rng,
        )
        parts, extra = await self._speak(request)
        before = tuple(token for part in parts for token in part.tokens)
        longest = len(prompt) + len(before) + form.max_tokens
        if self._context is not None and longest > self._context:
            episode.outgrown = True
            raise PolicyFailure(f"prompt and action have {longest} tokens, and the model reads {self._context}.")
        answered = await self._engine.generate(replace(request, prompt=(*prompt, *before)))
        answer, completion = form.read(answered.tokens), join([*parts, answered])
        # A step without an action has an empty one, so the answer stays in the record and is trained on.
        action, thought = answer.action or "", self._prompts.read(before) if before else ""
        text = f"{thought}\n{answer.text}" if thought else answer.text
        Conversations.answer(chat, action, completion.tokens, text=text)
        episode.keep(turn, action, self._row(episode, chat, context, prompt, completion))
        usage = ModelUsage(len(prompt), sum(completion.mask), calls=1 + len(parts))
        if answer.action is None:
            # An answer that the end of the context cut says nothing about the policy.
            episode.outgrown |= longest == self._context and len(answered.tokens) == form.max_tokens
            raise UnusableAnswer.of(answer, usage)
        if thought:
            extra = {"thought": messages.clean(thought, 300), **extra}
        why = Reasons(tokens=tuple(completion.tokens), memory=chat.turns[-1].hint, extra=extra)
        return Decision(action, why, usage)

    def _open_chance(self, spec: Spec, turn: int, attempt: int) -> random.Random:
        """Return the chance of one answer, which does not depend on the order of the batch."""
        return random.Random(f"{spec.session}:{turn}:{attempt}")

    def _advance(self, spec: Spec, context: Context) -> Conversation:
        """Return the conversation with an open turn; that of a branch begins as that of its parent did."""
        begins = len(context.history) == len(spec.prefix)
        if spec.parent and begins and context.history:
            self._log.fork(spec.parent, context.thread, len(spec.prefix))
        if spec.note and begins:
            # in any arm: the note belongs to the episode, and not to what an arm recalls
            text = f"{spec.note}\n{context.guidance}" if context.guidance else spec.note
            context = replace(context, guidance=text)
        return self._log.advance(context)

    async def _speak(self, request: Request) -> tuple[list[Completion], dict[str, str]]:
        """Return what stands before the action of a request, and what of it is recorded with the step."""
        parts = [] if self._opening is None else await self._opening.speak(self._engine, request)
        extra = {} if self._opening is None else self._opening.read(parts)
        if self._speech is not None:
            before = tuple(token for part in parts for token in part.tokens)
            parts = [*parts, await self._think(self._speech, replace(request, prompt=(*request.prompt, *before)))]
            if self._is_predicted:
                extra["prediction"] = messages.clean(self._prompts.read(parts[-1].tokens), 300)
        return parts, extra

    async def _think(self, speech: Speech, request: Request) -> Completion:
        """Sample what stands before the action of a request, as far as the context has room for both."""
        room = speech.max_tokens
        if self._context is not None:
            room = min(room, self._context - len(request.prompt) - len(speech.line_end) - request.max_tokens)
        if room < 1:
            return speech.skip(self._engine.versions()[self._role])
        return speech.end(await self._engine.generate(speech.ask(request, room)))

    def decide(self, context: Context) -> Decision:
        """Run `adecide` for a loop without asyncio."""
        return asyncio.run(self.adecide(context))

    def _row(
        self, episode: _Episode, chat: Conversation, context: Context, prompt: Ids, completion: Completion
    ) -> Sample:
        """Return the sample of a completion."""
        hint = next((turn.hint for turn in reversed(chat.turns) if turn.hint is not None), None)
        return Sample(
            prompt,
            completion.tokens,
            completion.logprobs,
            completion.mask,
            completion.allowed,
            self._role,
            completion.version,
            episode.spec.arm,
            self.snapshot,
            compute_anchor(context.state.signature, hint),
            episode.spec.session,
            len(context.history),
        )


async def collect(
    agents: Mapping[str, Agent],
    engine: Engine,
    specs: Sequence[Spec],
    *,
    outcome: OutcomeKind = "success",
    on_end: Callable[[], None] | None = None,
) -> list[Rollout]:
    """Run all episodes concurrently, each with the agent of its arm; return the rollouts in order."""
    # Announce all sessions first, so that the engine can wait for a full batch.
    for spec in specs:
        await engine.begin(spec.session)
    return list(await asyncio.gather(*(_run(agents[spec.arm], engine, spec, outcome, on_end) for spec in specs)))


async def _run(
    agent: Agent, engine: Engine, spec: Spec, outcome: OutcomeKind, on_end: Callable[[], None] | None
) -> Rollout:
    """Run one episode and return its rollout."""
    episode = _Episode(spec)
    _EPISODE.set(episode)  # visible in this asyncio task only, so episodes do not mix
    try:
        # an agent of your own, such as a member of a team, need not know how to begin elsewhere
        begun: dict[str, Any] = (
            {"prefix": spec.prefix, "max_steps": spec.max_steps} if spec.prefix or spec.max_steps else {}
        )
        result = await agent.arun(spec.task, spec.seed, thread_id=spec.session, **begun)
    except CannotBranch as error:
        # an exclusion, like an environment that broke: a start that failed says nothing about the policy
        failure = {"failed": str(error)}
        nothing = Trajectory(
            spec.task, (), None, arm=spec.arm, seed=spec.seed, ending=NO_START, meta=failure, id=spec.session
        )
        return _to_rollout(episode, nothing, (), NO_START, outcome)
    finally:
        # in any case: a session that never ends would block every round of a local engine
        await engine.end(spec.session)
    if on_end is not None:
        on_end()
    # samples name their episode by its session, so the trajectory needs the same id
    trajectory = mark_outcome(replace(result.trajectory, id=spec.session, arm=spec.arm), outcome)
    failed = "" if trajectory.success is not None else trajectory.ending
    if trajectory.ending == "policy_error":
        # Answers that are no actions are the model's own failure; it learns from them.
        answered = len(trajectory.steps) - 1 in episode.rows
        failed = OUTGROWN if episode.outgrown else "" if answered else trajectory.ending
    rows = () if failed else episode.collect(trajectory.steps)
    return _to_rollout(episode, trajectory, rows, failed, outcome)


def _to_rollout(
    episode: _Episode, trajectory: Trajectory, rows: tuple[Sample, ...], failed: str, outcome: OutcomeKind
) -> Rollout:
    """Return a rollout that says how its episode began."""
    spec = episode.spec
    path = tuple(step.action for step in spec.prefix)
    return Rollout(
        trajectory,
        rows,
        spec.group,
        failed,
        outcome,
        tried=episode.tried,
        start=len(path),
        parent=spec.parent,
        root=spec.root,
        label=spec.label,
        consulted=tuple(episode.consulted),
    )
