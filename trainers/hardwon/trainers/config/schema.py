"""Settings of a training run, read from YAML into documented dataclasses.

`hardwon train CONFIG --print-config` prints every field with its docstring as a comment. Unknown keys and
values of a wrong type or range raise ConfigError with their path.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from hardwon.memory.errors import ConfigError
from hardwon.memory.validation import parse_range
from hardwon.runtime.interfaces.arms import CONTROL as CONTROL, Arm
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers import ComposerParts
from hardwon.trainers.algorithms.imitation import Examples, WarmStart
from hardwon.trainers.algorithms.outcomes import OutcomeKind
from hardwon.trainers.algorithms.samplers.balance import Balance
from hardwon.trainers.models.tiny import TinyConfig

from .kinds import ARM_GUIDANCE, GUIDANCE as GUIDANCE, LEARNS, RECALLS as RECALLS, TELLS as TELLS
from .parsing import as_dict as as_dict, as_yaml as as_yaml, differences as differences, naming, parse as parse
from .policy import PolicySettings as PolicySettings
from .roles import CreditConfig as CreditConfig, RoleConfig as RoleConfig
from .schedules import look_up
from .sources import check_parts


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """The environment of a run."""

    name: str
    """textworld, babyai, bfcl, alfworld, scienceworld, wiki, MODULE:CLASS of your own environment, in the
    current folder or an installed module, or program: an agent of your own, see the section program."""
    game: str | None = None
    """Name of one of the environment's games."""
    params: str = ""
    """Parameters of the game, as NAME=NUMBER, NAME=NUMBER."""
    max_steps: int = 50
    """Maximum number of steps per episode; of model calls for a program."""


@dataclass(frozen=True, kw_only=True)
class TaskInstances:
    """Task instances of an environment, named by split and seed."""

    fold: str = ""
    """Split that is passed to the environment as task: train, dev, test. Empty uses the environment's default."""
    seeds: str = "0-99"
    """Seeds of the split as A-B, both inclusive."""

    def __post_init__(self) -> None:
        _ = self.all  # raises ConfigError for malformed seeds

    @property
    def all(self) -> tuple[tuple[str, int], ...]:
        """Return the split and seed of each task instance.

        Raises:
            ConfigError: `seeds` is not a range A-B.
        """
        return tuple((self.fold, seed) for seed in parse_range(self.seeds))


@dataclass(frozen=True, kw_only=True)
class TasksConfig:
    """Task instances for training and for evaluation."""

    train: TaskInstances = field(default_factory=TaskInstances)
    """Task instances to train on. Each is drawn once before any is drawn again."""
    eval: TaskInstances = field(default_factory=lambda: TaskInstances(seeds="900-929"))
    """Held-out task instances for evaluation. Training and exploration must not use them."""
    sampler: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Order of the training instances: one sampler with its settings, such as informative: {}. Default: each once per
    epoch, at random."""
    compose: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Composition of the groups of training: one composer with its settings, such as prefixed: {}. Default: every
    episode from its beginning."""
    demonstrations: tuple[str, ...] = ("explored",)
    """Where composers and extra examples find a success of a training instance, in this order: explored (random
    episodes), gold (the environment's own solution), or a JSON file with a list of task, seed and actions."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the signals that the composer reads."""
        return tuple(signal for name in self.compose for signal in PARTS.find("composer", name).needs)

    def __post_init__(self) -> None:
        compose = check_parts("composer", self.compose, "compose")
        for name, settings in compose.items():
            with naming(f"compose.{name}"):  # it checks the ranges of its settings
                PARTS.get("composer", name)(ComposerParts(), **settings)
        if len(compose) > 1:
            raise ConfigError(f"compose names {', '.join(compose)}; choose one.")
        object.__setattr__(self, "compose", compose)
        if len(self.sampler) > 1:
            raise ConfigError(f"sampler names {', '.join(self.sampler)}; choose one.")
        object.__setattr__(self, "sampler", check_parts("sampler", self.sampler, "sampler"))


@dataclass(frozen=True, kw_only=True)
class ExploreConfig:
    """Episodes before training: source of warm-start examples, vocabulary and example paths."""

    worlds: TaskInstances = field(default_factory=TaskInstances)
    """Task instances that provide the examples and the vocabulary."""
    policy: Literal["random", "curious", "episodic", "archive", "gold"] = "random"
    """Who explores. random: random actions. curious: the action that was taken least often in this state, in all tries
    of the task instance. episodic: the agent without a model, which learns from one instance to the
    next, as in `hardwon run`. It also finds the outcomes that need several steps in the right order. archive: returns
    to the states found so far by replay and tries one more action there (Go-Explore); the environment must repeat.
    gold: the environment's own solution, for tasks that no exploration solves; it needs `gold_path()`."""
    steps: int = 40
    """Maximum number of steps per exploring episode."""
    tries: int = 2
    """Maximum number of exploring episodes per task instance; of returns with archive, for which 125 is the paper's.
    Exploration stops at the first success."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model to train."""

    base: str = "tiny"
    """Folder or hub name of a model, or tiny: a small model with random weights and the explored words as
    vocabulary."""
    tiny: TinyConfig = field(default_factory=TinyConfig)
    """Shape of a tiny model: width, layers, heads and context length."""
    adapter: int | None = None
    """Rank of the LoRA adapter of each role. null trains all parameters, on one copy of the base per role."""
    device: str = "auto"
    """cpu, cuda, or auto, which uses a GPU if there is one."""
    prompt: str = "auto"
    """chat uses the base's chat template, compact a language of content words; auto is compact for tiny bases only."""

    @property
    def is_compact(self) -> bool:
        """Return whether prompts are content words between marks, which are added to the vocabulary."""
        return self.prompt == "compact" or (self.prompt == "auto" and self.base == "tiny")

    def __post_init__(self) -> None:
        if self.prompt not in ("auto", "compact", "chat"):
            raise ConfigError(f"model.prompt is {self.prompt!r}; use auto, compact or chat.")
        if self.prompt == "chat" and self.base == "tiny":
            raise ConfigError("model.prompt is chat, but a tiny base has no chat template; set model.base to a folder.")


@dataclass(frozen=True, kw_only=True)
class LibraryConfig:
    """The experience library of the arms that show recalled items."""

    path: str | None = None
    """Library to start from, a file or postgresql://USER@HOST/DB; the run works on a copy. null starts with an empty
    library."""
    explored: dict[str, TaskInstances] = field(default_factory=dict)
    """Task instances whose exploring episodes are recorded in the library before training, under names of your own.
    Experience of other instances of the evaluation's split belongs here; the evaluated instances themselves do not."""
    learn: bool = True
    """Record the finished rollouts after every iteration."""
    evolve_every: int = 1
    """Iterations between two evolutions, which extract, admit, merge, decay and evict items. 0 for never."""
    recall: int = 5
    """Maximum number of items, and of similar steps, per recall."""
    withhold: bool = True
    """Withhold some fitting items for an episode at random, as an agent that learns does, so that the effect of each
    item is measured. Applies to training only."""
    guardrails: bool = True
    """Refuse actions that the library's guardrails forbid."""
    planner: Literal["skills", "demonstrations"] | None = None
    """skills: plan with the library's skills, and repair the rest of a plan in trouble. demonstrations: show the next
    action of a like task's success, bound to this task. null plans nothing."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine that generates tokens."""

    url: str | None = None
    """URL of a vLLM server, including /v1. It must serve the base, as the first model that it lists, and load adapters
    at run time. Its API key is that of the environment variable VLLM_API_KEY, if it needs one. null generates with the
    trained model, in this process."""
    folder: str | None = None
    """Folder for the adapters, under a path that the server can read. null uses run.out/adapters."""


@dataclass(frozen=True, kw_only=True)
class RolloutsConfig:
    """Processes that play the episodes of training and evaluation, beside that of the learner."""

    workers: int = 0
    """Ray actors that play the episodes, on the cluster that RAY_ADDRESS names, on one that runs here, or else on this
    machine. 0 plays them in the learner's process."""
    max_lag: int = 0
    """Updates by which the weights that play may be older than those that learn. With 0, playing and learning
    alternate; with more, the workers play the next iterations during an update."""


@dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
    """Imitation of successful exploring episodes before the first iteration."""

    examples: Examples = field(default_factory=Examples)
    """Selection of the episodes, and how often each is used with its memory."""
    learning: WarmStart = field(default_factory=WarmStart)
    """Settings of the imitation updates."""
    run: str | None = None
    """Folder of a run with the same model, or of one of its checkpoints: its roles are taken over. Nothing is imitated
    then, unless `learning` is set: the policy learns from further demonstrations. So one warm start serves several
    runs."""

    def __post_init__(self) -> None:
        if not self.imitates and self.examples != Examples():
            raise ConfigError(
                f"warmstart.run is {self.run}, so nothing is imitated; set warmstart.learning as well to imitate, or "
                f"remove examples, on the command line with warmstart='{{run: {self.run}}}'."
            )

    @property
    def imitates(self) -> bool:
        """Return whether the policy imitates demonstrations."""
        return self.run is None or self.learning != WarmStart()


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation on held-out task instances."""

    every: int = 20
    """Iterations between two evaluations, with one more at the start and at the end. 0 for none."""
    copies: int = 2
    """Episodes per task instance and arm."""
    temperature: float = 1.0
    """Sampling temperature of the policy. 0 is greedy, which walks in circles more often."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Length, schedule, seeds and output of a run."""

    iterations: int = 60
    """Iterations, each with rollouts and one update."""
    groups: int = 8
    """Groups per iteration. A group plays one task instance in every arm."""
    rerolls: int = 0
    """Maximum number of times per iteration that groups without a signal are replaced (dynamic sampling)."""
    temperature: float = 1.0
    """Sampling temperature of the rollouts."""
    balance: bool = False
    """Choose the temperature of the rollouts while training, from `temperature` on: every other iteration tries a
    neighbor, and the one that gives more different successes per episode is kept (B-STaR)."""
    save_every: int = 10
    """Iterations between two checkpoints, with more at the start, at the end and after each evaluation. A warm start is
    saved every five minutes."""
    keep: int = 3
    """Number of newest checkpoints to keep, besides the best one."""
    history: int = 0
    """Iterations between two copies of the roles' weights in run.out/history, from which --extrapolate reads. 0 for
    none."""
    seed: int = 0
    """Seed of all random numbers of the run."""
    threads: int | None = None
    """CPU threads. null keeps torch's default."""
    at_once: int | None = None
    """Episodes that run at once, each with the keys and values of its tokens in memory: fewer for long episodes, more
    for a large GPU. null is 256 with a tiny base, 32 with another, and 8 for a program."""
    out: str = "runs/train"
    """Folder for checkpoints and metrics."""

    def __post_init__(self) -> None:
        if self.balance:
            Balance(start=self.temperature)  # it checks that it begins within its bounds


@dataclass(frozen=True, kw_only=True)
class ProgramConfig:
    """Episodes of a program of your own, which calls the policy as a model of the OpenAI API."""

    command: str = ""
    """Command that plays one episode, such as `python agent.py`. Its OPENAI_BASE_URL and OPENAI_API_KEY are those of
    the policy, and HARDWON_TASK, HARDWON_SEED and HARDWON_INPUT name the task instance."""
    inputs: str = ""
    """File of JSON lines with the inputs of the task instances: seed N reads line N, from 0. Empty passes only the
    seed."""
    reward: str = ""
    """MODULE:CALLABLE that grades a finished episode. Empty takes the outcome that the program reports."""
    timeout_s: float = 600.0
    """Seconds after which an episode is stopped."""
    broken: float | None = None
    """Outcome of an episode whose program crashed or was stopped before a grade. null leaves it out and counts it."""
    port: int = 0
    """Port on which the policy answers during rollouts; 0 for any free one. Fix it for a proxy in front of it."""
    urls: dict[str, str] = field(default_factory=dict)
    """Base URL for the program, by arm, if something stands in front of the policy, such as `hardwon proxy`."""

    def __post_init__(self) -> None:
        if self.reward and not all(self.reward.partition(":")):
            raise ConfigError(f"program.reward is {self.reward!r}; write MODULE:CALLABLE, such as rewards:grade.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training run; `loading` checks them."""

    environment: EnvironmentConfig
    """The environment, such as {name: textworld, game: coin}."""
    program: ProgramConfig = field(default_factory=ProgramConfig)
    """The program that plays the episodes of environment.name: program."""
    tasks: TasksConfig = field(default_factory=TasksConfig)
    """Task instances for training and for evaluation."""
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    """Episodes of random actions before training."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The model to train."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """The engine that generates tokens with it."""
    rollouts: RolloutsConfig = field(default_factory=RolloutsConfig)
    """Processes that play the episodes."""
    arms: dict[str, int] = field(default_factory=lambda: {CONTROL: 8})
    """Episodes per group in each arm. The arm control, without guidance, is required."""
    guidance: dict[str, str] = field(default_factory=dict)
    """Guidance of each arm: none, library, experience, another, role or all. Default: the arm's own name; retrieved
    is library and guided is role."""
    library: LibraryConfig = field(default_factory=LibraryConfig)
    """The experience library, used if an arm shows recalled items or a role needs it."""
    roles: dict[str, RoleConfig] = field(default_factory=lambda: {"policy": RoleConfig()})
    """The trainable roles, in the order of their turns."""
    warmstart: WarmStartConfig | None = None
    """Imitation before training. null starts with the model as it is."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluation on held-out task instances."""
    run: RunConfig = field(default_factory=RunConfig)
    """Length, seeds and output of the run."""
    schedule: dict[str, Any] = field(default_factory=dict)
    """Settings that change during the run: pairs of an iteration and a value by path, for environment.max_steps,
    run.temperature and roles.policy.loss.entropy."""

    def get_scheduled(self, path: str, iteration: int) -> float:
        """Return the value of a setting at an iteration: that of its schedule, or else the setting's own."""
        if path in self.schedule:
            return look_up(self.schedule[path], iteration)
        policy = self.roles["policy"]
        own: dict[str, float] = {
            "environment.max_steps": self.environment.max_steps,
            "run.temperature": self.run.temperature,
            "roles.policy.loss.entropy": policy.loss.entropy,
        }
        return own[path]

    def get_guidance(self, arm: str) -> str:
        """Return the kind of guidance of the arm with this name."""
        return self.guidance.get(arm) or ARM_GUIDANCE.get(arm, arm)

    def list_arms(self) -> dict[Arm, int]:
        """Return the arms of training with their episodes per group."""
        return {Arm(name, self.get_guidance(name)): copies for name, copies in self.arms.items()}

    def list_evaluated_arms(self, copies: int | None = None) -> dict[Arm, int]:
        """Return the arms of an evaluation with their episodes per task instance.

        Arms whose memory changes during training come twice: as they are, and frozen.

        Args:
            copies: Episodes per task instance and arm; `eval.copies` if None.
        """
        arms = list(self.list_arms())
        frozen = [arm.freeze() for arm in arms if arm.memory in LEARNS]
        return dict.fromkeys([*arms, *frozen], copies or self.eval.copies)

    @property
    def policy(self) -> PolicySettings:
        """Return how the policy answers."""
        return parse(PolicySettings, self.roles["policy"].settings, "roles.policy.settings")

    @property
    def outcome(self) -> OutcomeKind:
        """Return what counts as the outcome of an episode, for all parts of the run."""
        return self.roles["policy"].credit.outcome

    @property
    def uses_library(self) -> bool:
        """Return whether an arm shows recalled items or the texts of a role."""
        return bool(LEARNS & {self.get_guidance(arm) for arm in self.arms})
