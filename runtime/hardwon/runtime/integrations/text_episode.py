"""An episode of any environment as texts: what a model reads, and what it answers.

    episode = TextEpisode(environment)
    text = episode.begin("train", seed=7)       # the observation and the listed actions
    while not episode.is_over:
        text = episode.answer(model(text))      # the number, the words or the JSON call of an action
    episode.score

Other trainers step environments through it: see `trl` and `verifiers` beside this file. The texts are those that
`ChatPolicy` sends.
"""

from hardwon.memory import State, Step
from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.diagnosis import diagnose
from hardwon.runtime.interfaces.types import Context, Described, Environment, Info, Tooled
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.llm import prompts


class TextEpisode:
    """Steps an environment by a model's answers."""

    def __init__(self, environment: Environment, *, max_steps: int = 50) -> None:
        """Create an episode; `begin` starts it."""
        self._environment, self._max_steps = environment, max_steps
        self._context: Context | None = None
        self.steps: list[Step] = []
        """The steps so far; an answer that is no action makes none."""
        self.answers = 0
        self.is_over, self.success, self.score = False, False, 0.0

    @property
    def rules(self) -> str:
        """The role, the task and the rules, for a system message."""
        context = self._require()
        return prompts.system_prompt(context.state.task, manual=context.manual, calls=bool(context.tools))

    def begin(self, task: str = "", seed: int = 0) -> str:
        """Begin an episode, and return the text of its first turn."""
        self.steps, self.answers, self.is_over, self.success, self.score = [], 0, False, False, 0.0
        state, working = self._environment.reset(task, seed), WorkingMemory()
        working.begin(state)
        return self._open(state, working)

    def answer(self, text: str) -> str:
        """Run the action that an answer names, and return the text of the next turn; the last result if it is over."""
        context = self._require()
        if self.is_over:
            raise ConfigError("the episode is over; call begin first.")
        self.answers += 1
        action = prompts.choose(text, context.actions) if context.actions else prompts.free_action(text)
        if action is None:
            self.is_over = self.answers >= self._max_steps
            return prompts.repair_prompt(context, "It names no action.")
        post, reward, is_done, info = self._environment.step(action)
        diagnosis = diagnose(context.state, action, post, reward, info, self.steps, context.working)
        self.steps.append(Step(context.state, action, post, diagnosis, reward, len(self.steps)))
        context.working.add(self.steps[-1])
        self._note(info, reward)
        self.is_over = is_done or self.answers >= self._max_steps
        if self.is_over:
            return prompts.result_of(self.steps[-1]) or post.observation
        return self._open(post, context.working)

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    def _note(self, info: Info, reward: float) -> None:
        self.success = bool(info.get("success", False))
        # an environment without a score has its rewards
        self.score = float(info.get("score", self.success or self.score + reward))

    def _open(self, state: State, working: WorkingMemory) -> str:
        environment = self._environment
        self._context = Context(
            state,
            tuple(sorted(environment.admissible(state))),
            history=tuple(self.steps),
            working=working,
            manual=environment.describe() if isinstance(environment, Described) else "",
            tools=environment.tool_schemas() if isinstance(environment, Tooled) else {},
        )
        return prompts.turn_prompt(self._context)

    def _require(self) -> Context:
        if self._context is None:
            raise ConfigError("no episode has begun; call begin first.")
        return self._context
