"""The stage: everything that plays episodes, built from settings or brought back from a checkpoint.

    stage = Stage.build(config, out)
    rollouts = await stage.play([("train", 7)], {"control": 4, "experience": 4}, salt="1")

An episode is the runtime's: the same agent, loop and library as in production. This file trains nothing.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import UnknownName
from hardwon.runtime import Agent, Environment
from hardwon.runtime.guidance.base import Guidance, RetrievalGuidance

from .algorithms.parallel import get_team
from .algorithms.samples import Rollout
from .checkpoint import copy_library, put_library
from .config.schema import LEARNS, EngineConfig, RoleConfig, TrainConfig, of
from .engines import base_models
from .engines.base_models import BASE
from .engines.factory import open_engine
from .gating.diversity import DiverseLibrary, Diversity, merge_pass
from .gating.gate import GatedGuidance, open_gate
from .gating.gate_policy import QUESTION
from .roles.base import ROLES, Parts, Reader, Role
from .roles.item_reward import unaided, uses_of
from .roles.note_generators import OUTCOMES, WORDS
from .rollouts.explore import Explorer, Task, open_world, words
from .rollouts.rollout import GivenGuidance, Spec, TokenPolicy, collect
from .rollouts.transcript import Transcript

CONCURRENT = 256
"""Episodes that run at once."""
FROZEN = "-frozen"
"""An arm of this ending is shown what it would have been shown when the run began."""
LIBRARY, START = "library.db", "library-start.db"
"""Files in a run's folder: the library that learns, and as it was at the start."""
SHOWN, GATE_LOG = "shown.json", "gate.jsonl"
"""In a checkpoint: what was shown how often, and what the gate remembers. In a run's folder: its answers."""
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
        out: Path,
        *,
        plays: bool = True,
    ) -> None:
        """`base`: model and tokenizer; `start`: the library as it was when the run began, if that matters.

        plays: else no engine elsewhere is opened, because another process plays.
        """
        self.config, self.environment, self.explorer, self._out = config, environment, explorer, out
        self.library, self._start = library, start
        model, self.tokenizer = base
        self.transcript = Transcript(self.tokenizer)
        trained = base_models.for_roles(model, list(config.roles), config.model, config.run.seed)
        if (ours := get_team()) is not None and ours.shards:
            ours.shard_base(next(iter(trained.values())))
        elsewhere = config if plays else replace(config, engine=EngineConfig())
        self.engine = open_engine(elsewhere, next(iter(trained.values())), self.tokenizer, out)
        self.gate = open_gate(config.gate, self.engine, self.transcript)
        self.diversity = Diversity(seed=config.run.seed)
        self.roles = {name: self._role(name, part, trained[name]) for name, part in config.roles.items()}
        self._agents: dict[tuple[str, float, bool], Agent] = {}
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
            asked = [QUESTION] if config.gate.kind == "policy" else []
            texts = words(explorer.trajectories(config.explore.worlds), [*_library_words(library), *asked])
        base = base_models.build_base(config.model, texts, config.run.seed)
        return cls(config, environment, explorer, base, library, start, out)

    @classmethod
    def restore(cls, checkpoint: Path, out: Path, config: TrainConfig | None = None, *, plays: bool = True) -> "Stage":
        """As it was in a checkpoint, weights and library included; works in `out`."""
        config = config or read_config(checkpoint)
        environment = open_world(config.environment)
        out.mkdir(parents=True, exist_ok=True)
        for name in (LIBRARY, START):
            if (checkpoint / name).exists():
                put_library(checkpoint / name, out / name)
        library, start = _libraries(config, out)
        base = base_models.read_base(checkpoint / BASE, config.model)
        stage = cls(config, environment, Explorer(environment, config.explore), base, library, start, out, plays=plays)
        stage._load_roles(checkpoint)
        return stage

    def save(self, folder: Path) -> None:
        """What `restore` needs: settings, base, the state of every role, the libraries."""
        import torch

        (folder / "config.json").write_text(json.dumps(self.config_dict(), indent=2) + "\n", encoding="utf-8")
        (folder / BASE).mkdir()
        base_models.save_base(self._model, self.tokenizer, folder / BASE, self.config.model)
        for name, role in self.roles.items():
            state = {"version": self.engine.versions()[name], "state": role.state_dict()}
            torch.save(state, folder / f"{name}.pt")
        shown = {"diversity": self.diversity.state_dict(), "gate": self.gate.state_dict() if self.gate else None}
        (folder / SHOWN).write_text(json.dumps(shown), encoding="utf-8")
        for name, library in ((LIBRARY, self.library), (START, self._start)):
            if library is not None and library.path != ":memory:":
                copy_library(library.path, folder / name)

    def config_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        from .config.schema import as_dict

        return as_dict(self.config)

    def _load_roles(self, checkpoint: Path) -> None:
        import torch

        for name, role in self.roles.items():
            saved = torch.load(checkpoint / f"{name}.pt", map_location="cpu", weights_only=True)
            role.load_state_dict(saved["state"])
            self.engine.load_adapter(name, saved["version"], role.weights())
        shown = json.loads((checkpoint / SHOWN).read_text(encoding="utf-8"))
        self.diversity.load_state_dict(shown["diversity"])
        if self.gate is not None and shown["gate"] is not None:
            self.gate.load_state_dict(shown["gate"])

    def _role(self, name: str, config: RoleConfig, model: Any) -> Role:
        if name not in ROLES:
            raise UnknownName.of("role", name, ROLES)
        seed, source = self.config.run.seed, self.explorer.source
        parts = Parts(
            config,
            model,
            self.transcript,
            self.engine,
            self.library,
            seed,
            source,
            self.gate,
            explored=lambda task, number: self.explorer.explored((task, number)),
            episodes=lambda: self.explorer.trajectories(self.config.explore.worlds),
            environment=self.environment,
        )
        return ROLES[name](parts)

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
        agents = {arm: self._agent(arm, temperature, learning) for arm in arms}
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

    def _agent(self, arm: str, temperature: float, learning: bool) -> Agent:
        policy = self._policies.setdefault(
            temperature, TokenPolicy(self.engine, self.transcript, temperature=temperature)
        )
        if (known := self._agents.get((arm, temperature, learning))) is not None:
            return known
        recalls = self.config.shown(arm.removesuffix(FROZEN)) == "library"
        library: Any = self._start if arm.endswith(FROZEN) and self._start is not None else self.library
        if learning and recalls and self.config.library.diverse:
            library = DiverseLibrary(library, self.diversity)
        retrieval: Guidance = RetrievalGuidance()
        if self.gate is not None and not arm.endswith(FROZEN):
            retrieval = GatedGuidance(retrieval, self.gate)
        made = self._agents[arm, temperature, learning] = Agent(
            policy,
            library,
            self.environment.clone(),
            arm=arm,
            learn=False,
            guardrails=recalls,
            guidance=retrieval if recalls else GivenGuidance(),
            max_steps=self.config.environment.max_steps,
            recall_k=self.config.library.recall if recalls else 0,
            retries=0,
        )
        return made

    # -- learning -----------------------------------------------------------------------------------

    @property
    def readers(self) -> list[Reader]:
        """The roles that read beside the rollouts."""
        return [role for role in self.roles.values() if isinstance(role, Reader)]

    def learned(self, rollouts: Sequence[Rollout]) -> None:
        """Every role takes what it can learn from; the gate hears how it goes without, and what items were worth."""
        self.diversity.settle()
        for role in self.roles.values():
            role.collect(rollouts)
        if self.gate is None:
            return
        for rollout in unaided(rollouts):
            self.gate.scored(rollout.trajectory.steps[0].pre.task, [float(bool(rollout.trajectory.success))])
        for _, item, use in uses_of(rollouts):
            if use.control:
                self.gate.learned(item, use.differences)

    def gate_told(self, iteration: int, kind: str = "train") -> dict[str, float]:
        """How often the gate gave which answer since the last time; every answer goes to a file."""
        if self.gate is None:
            return {}
        answers = self.gate.drained()
        with (self._out / GATE_LOG).open("a", encoding="utf-8") as file:
            file.writelines(
                sorted(json.dumps({"iteration": iteration, "kind": kind, **answer}) + "\n" for answer in answers)
            )
        told = Counter({"accept": 0, "refine": 0, "reject": 0})
        for answer in answers:
            told[answer["answer"]] += answer["times"]
        return {f"gate/{name}": float(number) for name, number in told.items()}

    async def library_learns(self, iteration: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """What was played and read becomes experience; the weights are left alone."""
        config, told = self.config.library, dict[str, float]()
        learns = self.config.uses_library and config.learn
        if learns:
            self.library.record_many([rollout.trajectory for rollout in rollouts])
        for name, role in self.roles.items():
            if isinstance(role, Reader):
                told.update({f"{name}/{key}": value for key, value in (await role.written(rollouts)).items()})
        if not learns:
            return told
        # through a fresh handle, so that what comes of it depends on the file alone and a run can go on exactly
        with ExperienceLibrary.open(self.library.path, self.library.embedder, self.library.namespace) as fresh:
            if config.evolve_every and iteration % config.evolve_every == 0:
                fresh.evolve()
            if config.merge_every and iteration % config.merge_every == 0:
                told["library/merged"] = merge_pass(fresh)
        self.library.forget_findings()  # a run that goes on has not seen what was found earlier
        return {**told, "library/episodes": self.library.episodes, "library/items": len(self.library.items())}

    def arms_to_evaluate(self, copies: int) -> dict[str, int]:
        """Every arm, and those that learn also as they were at the start."""
        arms = dict.fromkeys(self.config.arms, copies)
        learning = [arm for arm in arms if self.config.shown(arm) in LEARNS]
        return {**arms, **{f"{arm}{FROZEN}": copies for arm in learning}}

    def close(self) -> None:
        """Close environments and libraries."""
        for agent in self._agents.values():
            agent.close()
        if (close := getattr(self.engine, "close", None)) is not None:
            close()
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
    return [GUIDANCE_WORDS, WORDS, OUTCOMES, *said]


def failures(rollouts: Sequence[Rollout]) -> Counter[str]:
    """How many episodes were excluded, by why."""
    return Counter(rollout.failed for rollout in rollouts if rollout.failed)
