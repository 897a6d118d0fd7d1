"""The stage: everything that plays episodes, built from settings or brought back from a checkpoint.

    stage = Stage.build(config, out)
    rollouts = await stage.play([("train", 7)], {"control": 4, "experience": 4}, salt="1")

An episode is the runtime's: the same agent, loop and library as in production. This file trains nothing.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.memory import ExperienceLibrary
from tacit.memory.errors import UnknownName
from tacit.runtime import Agent, Environment
from tacit.runtime.guidance import RetrievalGuidance

from . import models
from .checkpoint import copy_library, put_library
from .config import LEARNS, RoleConfig, TrainConfig, of
from .engine_local import LocalEngine
from .explore import Explorer, Task, open_world, words
from .models import BASE
from .roles import ROLES, Parts, Role
from .rollout import GivenGuidance, Spec, TokenPolicy, collect
from .rows import Rollout
from .transcript import Transcript

CONCURRENT = 256
"""Episodes that run at once."""
RECALL_K = 5
"""Items and steps that are recalled for an arm that is shown what the library recalls."""
FROZEN = "-frozen"
"""An arm of this ending is shown what it would have been shown when the run began."""
LIBRARY, START = "library.db", "library-start.db"
"""Files in a run's folder: the library that learns, and as it was at the start."""
GUIDANCE_WORDS = (
    "- strategy warning skill remedy insight guardrail : ` . ( ) , ; not when in a similar situation failed led to "
    "return of 0 1 2 3 4 5 6 7 8 9 10"
)
"""What retrieval says beside the words of items and steps."""


class Stage:
    """See the module's docstring."""

    def __init__(
        self,
        config: TrainConfig,
        environment: Environment,
        explorer: Explorer,
        base: tuple[Any, Any],
        library: ExperienceLibrary,
        start: ExperienceLibrary | None,
    ) -> None:
        """`base`: model and tokenizer; `start`: the library as it was when the run began, if that matters."""
        self.config, self.environment, self.explorer = config, environment, explorer
        self.library, self._start = library, start
        model, self.tokenizer = base
        self.transcript = Transcript(self.tokenizer)
        trained = models.for_roles(model, list(config.roles), config.model, config.run.seed)
        self.engine = LocalEngine(next(iter(trained.values())), self.tokenizer, roles=list(config.roles))
        self.roles = {name: self._role(name, part, trained[name]) for name, part in config.roles.items()}
        self._agents: dict[tuple[str, float], Agent] = {}
        self._policies: dict[float, TokenPolicy] = {}
        self.snapshot = ""
        """Names the library that is consulted, on every row."""

    @classmethod
    def build(cls, config: TrainConfig, out: Path) -> "Stage":
        """Anew, in a run's folder: a tiny base knows the words that were explored."""
        environment = open_world(config.environment)
        explorer = Explorer(environment, config.explore)
        out.mkdir(parents=True, exist_ok=True)
        if config.library.path and config.uses_library:
            copy_library(config.library.path, out / LIBRARY)
        library, start = _libraries(config, out)
        texts: Iterable[str] = ()
        if config.model.base == "tiny":
            texts = words(explorer.trajectories(config.explore.worlds), _library_words(library))
        return cls(
            config, environment, explorer, models.build_base(config.model, texts, config.run.seed), library, start
        )

    @classmethod
    def restore(cls, checkpoint: Path, out: Path, config: TrainConfig | None = None) -> "Stage":
        """As it was in a checkpoint, weights and library included; works in `out`."""
        config = config or read_config(checkpoint)
        environment = open_world(config.environment)
        out.mkdir(parents=True, exist_ok=True)
        for name in (LIBRARY, START):
            if (checkpoint / name).exists():
                put_library(checkpoint / name, out / name)
        library, start = _libraries(config, out)
        base = models.read_base(checkpoint / BASE, config.model)
        stage = cls(config, environment, Explorer(environment, config.explore), base, library, start)
        stage._load_roles(checkpoint)
        return stage

    def save(self, folder: Path) -> None:
        """What `restore` needs: settings, base, the state of every role, the libraries."""
        import torch

        (folder / "config.json").write_text(json.dumps(self.config_dict(), indent=2) + "\n", encoding="utf-8")
        (folder / BASE).mkdir()
        models.save_base(self._model, self.tokenizer, folder / BASE, self.config.model)
        for name, role in self.roles.items():
            state = {"version": self.engine.versions()[name], "state": role.state_dict()}
            torch.save(state, folder / f"{name}.pt")
        for name, library in ((LIBRARY, self.library), (START, self._start)):
            if library is not None and library.path != ":memory:":
                copy_library(library.path, folder / name)

    def config_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        from .config import as_dict

        return as_dict(self.config)

    def _load_roles(self, checkpoint: Path) -> None:
        import torch

        for name, role in self.roles.items():
            saved = torch.load(checkpoint / f"{name}.pt", map_location="cpu", weights_only=True)
            role.load_state_dict(saved["state"])
            self.engine.load_adapter(name, saved["version"], role.weights())

    def _role(self, name: str, config: RoleConfig, model: Any) -> Role:
        if name not in ROLES:
            raise UnknownName.of("role", name, ROLES)
        seed = self.config.run.seed
        return ROLES[name](Parts(config, model, self.transcript, self.engine, self.library, seed, self.explorer.source))

    @property
    def _model(self) -> Any:
        return next(iter(self.roles.values())).model

    # -- playing ------------------------------------------------------------------------------------

    async def play(
        self,
        worlds: Sequence[Task],
        arms: Mapping[str, int],
        *,
        salt: str,
        temperature: float = 1.0,
        learning: bool = False,
    ) -> list[Rollout]:
        """So many episodes of every arm in every world, by world, then arm, then copy.

        `learning`: roles show what they want to learn from, instead of what they think best.
        """
        specs = [
            Spec(fold, seed, arm, copy, memory=self._memory((fold, seed), arm, worlds), salt=salt)
            for fold, seed in worlds
            for arm, copies in arms.items()
            for copy in range(copies)
        ]
        specs = await self._prepared(specs, learning)
        agents = {arm: self._agent(arm, temperature) for arm in arms}
        self._policies[temperature].snapshot = self.snapshot
        rollouts: list[Rollout] = []
        for at in range(0, len(specs), CONCURRENT):
            rollouts += await collect(agents, self.engine, specs[at : at + CONCURRENT])
        return rollouts

    def _memory(self, world: Task, arm: str, worlds: Sequence[Task]) -> str | None:
        """What is shown at the start of an episode, of this world or of one beside it."""
        kind = self.config.shown(arm.removesuffix(FROZEN))
        if kind == "experience":
            return self.explorer.experience(world)
        if kind == "another":
            others = [*worlds, *self.config.explore.worlds.all]
            return self.explorer.experience(others[(others.index(world) + 1) % len(others)])
        return None

    async def _prepared(self, specs: list[Spec], learning: bool) -> list[Spec]:
        """The roles say what is shown in the arms that are theirs."""
        made = dict(enumerate(specs))
        for frozen in (False, True):
            mine = [
                at
                for at, spec in made.items()
                if self.config.shown(spec.arm.removesuffix(FROZEN)) == "role" and spec.arm.endswith(FROZEN) is frozen
            ]
            for role in self.roles.values() if mine else ():
                given = [made[at] for at in mine]
                asked = role.prepare(given, frozen=frozen) if learning or frozen else role.choose(given)
                made.update(zip(mine, await asked, strict=True))
        return [made[at] for at in range(len(specs))]

    def _agent(self, arm: str, temperature: float) -> Agent:
        policy = self._policies.setdefault(
            temperature, TokenPolicy(self.engine, self.transcript, temperature=temperature)
        )
        if (arm, temperature) not in self._agents:
            recalls = self.config.shown(arm.removesuffix(FROZEN)) == "library"
            library = self._start if arm.endswith(FROZEN) and self._start is not None else self.library
            self._agents[arm, temperature] = Agent(
                policy,
                library,
                self.environment.clone(),
                arm=arm,
                learn=False,
                guardrails=recalls,
                guidance=RetrievalGuidance() if recalls else GivenGuidance(),
                max_steps=self.config.environment.max_steps,
                recall_k=RECALL_K if recalls else 0,
                retries=0,
            )
        return self._agents[arm, temperature]

    def arms_to_evaluate(self, copies: int) -> dict[str, int]:
        """Every arm, and those that learn also as they were at the start."""
        arms = dict.fromkeys(self.config.arms, copies)
        learning = [arm for arm in arms if self.config.shown(arm) in LEARNS]
        return {**arms, **{f"{arm}{FROZEN}": copies for arm in learning}}

    def close(self) -> None:
        """Close environments and libraries."""
        for agent in self._agents.values():
            agent.close()
        self.explorer.close()
        self.environment.close()
        self.library.close()
        if self._start is not None:
            self._start.close()


def read_config(checkpoint: Path) -> TrainConfig:
    """The settings that a checkpoint was made with."""
    return of(json.loads((checkpoint / "config.json").read_text(encoding="utf-8")))


def _libraries(config: TrainConfig, out: Path) -> tuple[ExperienceLibrary, ExperienceLibrary | None]:
    """The library that learns, and as it was at the start; in memory where nothing is recalled or recorded."""
    if not config.uses_library:
        return ExperienceLibrary.open(":memory:"), None
    library = ExperienceLibrary.open(out / LIBRARY)
    if not (out / START).exists():
        copy_library(out / LIBRARY, out / START)
    return library, ExperienceLibrary.open(out / START, read_only=True)


def _library_words(library: ExperienceLibrary) -> list[str]:
    items = library.items()
    said = [f"{item.title} {item.body} {item.when_not_to_use}" for item in items]
    return [GUIDANCE_WORDS, *said]


def failures(rollouts: Sequence[Rollout]) -> Counter[str]:
    """How many episodes were excluded, by why."""
    return Counter(rollout.failed for rollout in rollouts if rollout.failed)
