"""The plan of an experiment: its arms, its seeds, and the settings of its agents.

random      any admissible action, no memory
empty       the same agent with an empty library, which measures the memory within an episode
task        the learned library, retrieved once per episode by the task
step        the learned library, recalled at every step: the learning agent
unguarded   as step, with guardrails disabled
skills      as step, following skills and remedies of the library where they apply
strategies  as step, with the strategy of --strategies that did best so far
search      as step, looking ahead in a clone of the environment, so compare it with other agents that have one
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hardwon.apps.shared.common import ADDRESSES, library_name
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.interfaces.arms import Arm

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.interfaces.extension import Router


@dataclass(frozen=True, slots=True)
class ArmSetup:
    """An arm and how its agent plays the test episodes."""

    arm: Arm
    policy: str | None = None
    """The policy to use instead of the plan's."""
    guardrails: bool = True
    planner: Literal["skills", "demonstrations", "search"] | None = None
    has_strategies: bool = False

    @property
    def level(self) -> Literal["task", "step"]:
        """Return how often the agent recalls: once per task, or at every step."""
        return "task" if self.arm.memory == "task" else "step"


LEARNER = Arm("step", "step")
"""The arm that learns; the others read its library."""
BASELINE = Arm("empty")
"""The arm that harm is measured against."""
SETUPS = {
    setup.arm.name: setup
    for setup in (
        ArmSetup(Arm("random"), policy="random"),
        ArmSetup(BASELINE),
        ArmSetup(Arm("task", "task")),
        ArmSetup(LEARNER),
        ArmSetup(Arm("unguarded", "step"), guardrails=False),
        ArmSetup(Arm("skills", "step"), planner="skills"),
        ArmSetup(Arm("demonstrations", "step"), planner="demonstrations"),
        ArmSetup(Arm("search", "step"), planner="search"),
        ArmSetup(Arm("strategies", "step"), has_strategies=True),
    )
}
"""The arms that a plan may name."""


@dataclass(frozen=True, kw_only=True)
class ExperimentPlan:
    """Definition of an experiment, stored beside the results so that two experiments never share a folder."""

    environment: str
    game: str | None
    params: str
    episodes: int
    """Number of training episodes per agent seed."""
    checkpoints: tuple[int, ...]
    """Numbers of training episodes after which the frozen agent is tested."""
    train_seeds: tuple[int, ...]
    eval_fold: str
    eval_seeds: tuple[int, ...]
    arms: tuple[str, ...]
    policy: str
    library: str
    seeds: tuple[int, ...]
    """Agent seeds. Each learns on its own, with its own order of tasks and its own random choices."""
    max_steps: int
    roles: str = ""
    """Export whose trained roles take part; empty for none."""
    device: str = "auto"
    """Device of the trained roles: cpu, cuda, or auto, which uses a GPU if there is one."""
    budget: Literal["fixed", "learned"] = "fixed"
    """End of an episode: at `max_steps`, or by the lengths of the library's successes; see `LearnedBudget`."""
    beside: tuple[str, ...] = ()
    """Other libraries to recall from as well, as far as that pays; see `RoutedRecall`."""
    strategies: str = ""
    """File of strategies, among which the learner and the arm `strategies` choose; empty for none."""

    def __post_init__(self) -> None:
        if not self.arms:
            raise ConfigError(f"the arms are empty; give some of: {', '.join(SETUPS)}.")
        if self.device != "auto" and not self.roles:
            raise ConfigError(f"device is {self.device!r}, that of trained roles; give --roles FOLDER, too.")
        for name in self.arms:
            if name not in SETUPS:
                raise UnknownName.of("arm", name, SETUPS)
        if self.budget not in ("fixed", "learned"):
            raise UnknownName.of("budget", self.budget, ("fixed", "learned"))
        name_stores(self.beside)
        if any(SETUPS[name].has_strategies for name in self.arms) != bool(self.strategies):
            raise ConfigError(
                f"the arms are {', '.join(self.arms)} and the file of strategies is {self.strategies or 'missing'}; "
                "give both --strategies FILE and the arm strategies, or none of them."
            )
        if self.episodes < 0:
            raise ConfigError(f"episodes is {self.episodes}; use 0 or more.")
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ConfigError(f"agent seeds are {list(self.seeds)}; give at least one, each once.")

    def library_path(self, seed: int) -> Path:
        """Return the library of an agent seed; of those that learn, all but the first have their number in its name."""
        path = Path(self.library)
        if seed == self.seeds[0] or not self.episodes:
            return path
        return path.with_name(f"{path.stem}-seed{seed}{path.suffix}")

    @property
    def is_shared(self) -> bool:
        """Return whether the library is shared: its name is the address of a database."""
        return self.library.startswith(ADDRESSES)

    def open_library(self, seed: int) -> "ExperienceLibrary":
        """Open the library of an agent seed; one that nobody learns into is only read.

        In a shared library, seeds after the first have a namespace each.
        """
        from hardwon.memory import ExperienceLibrary

        if not self.learns:
            return ExperienceLibrary.open(":memory:")
        if self.is_shared:
            namespace = self._name_namespace(seed)
            return ExperienceLibrary.open(self.library, namespace=namespace, read_only=not self.episodes)
        path = self.library_path(seed)
        if not self.episodes:
            return ExperienceLibrary.open(path if path.exists() else ":memory:", read_only=path.exists())
        path.parent.mkdir(parents=True, exist_ok=True)
        return ExperienceLibrary.open(path)

    def _name_namespace(self, seed: int) -> str:
        return "default" if seed == self.seeds[0] or not self.episodes else f"seed{seed}"

    def count_episodes(self, seed: int) -> int:
        """Return the number of episodes in the library file of an agent seed; 0 if there is none yet."""
        from hardwon.memory import ExperienceLibrary

        path = self.library_path(seed)
        if not self.learns or self.is_shared or not path.exists():
            return 0
        with ExperienceLibrary.open(path, read_only=True) as library:
            return library.episodes.count()

    def list_libraries(self) -> list[str]:
        """Return the libraries of all agent seeds, for people: without the password of an address."""
        if self.is_shared:
            return [f"{library_name(self.library)} namespace {self._name_namespace(seed)}" for seed in self.seeds]
        return [str(self.library_path(seed)) for seed in self.seeds]

    @property
    def setups(self) -> list[ArmSetup]:
        """Return the arms of the plan and how they play."""
        return [SETUPS[name] for name in self.arms]

    def tests(self) -> list[tuple[ArmSetup, int]]:
        """Return the arm and the checkpoint of every test; an arm without memory is tested once."""
        return [
            (setup, checkpoint)
            for checkpoint in self.checkpoints
            for setup in self.setups
            if setup.arm.has_memory or checkpoint == self.checkpoints[0]
        ]

    def total(self) -> int:
        """Return the number of training and test episodes over all agent seeds."""
        return len(self.seeds) * (self.episodes * self.learns + len(self.tests()) * len(self.eval_seeds))

    @property
    def learns(self) -> bool:
        """Return whether any arm needs a learned library."""
        return any(setup.arm.has_memory for setup in self.setups)


def name_stores(libraries: Sequence[str]) -> dict[str, str]:
    """Return the libraries by the names that the records use: file names without their ends."""
    named: dict[str, str] = {}
    for library in libraries:
        name = library_name(library).rstrip("/").rpartition("/")[2].removesuffix(".db").replace(":", "-")
        name = name.encode(errors="replace").decode()  # of a file whose name is not UTF-8
        if name in named:
            raise ConfigError(f"two libraries beside the own one are called {name}; rename one of the files.")
        named[name] = library
    return named


@contextmanager
def open_beside(libraries: Sequence[str], library: "ExperienceLibrary") -> Iterator["Router | None"]:
    """Open other libraries for reading and yield a recaller of all; None without any."""
    if not libraries:
        yield None
        return
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.loop.routed_recall import RoutedRecall

    with ExitStack() as stack:
        stores = {
            name: stack.enter_context(ExperienceLibrary.open(at, read_only=not at.startswith(ADDRESSES)))
            for name, at in name_stores(libraries).items()
        }
        yield RoutedRecall(library, stores)
