"""The session: everything that plays episodes, built from settings or restored from a checkpoint.

    stage = Stage.build(config, out)
    rollouts = await stage.play([("train", 7)], {"control": 4, "experience": 4}, salt="1")

Episodes use the same agent, loop and library as in production. The updates themselves are run by `trainer`.
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
from .gating.other_worlds import OtherWorlds
from .roles.base import ROLES, Parts, Reader, Role
from .roles.item_reward import unaided, uses_of
from .roles.note_generators import OUTCOMES, WORDS
from .rollouts.explore import Explorer, Task, open_world, words
from .rollouts.rollout import GivenGuidance, Spec, TokenPolicy, collect
from .rollouts.transcript import Transcript

CONCURRENT = 256
"""Episodes that run at once."""
FROZEN = "-frozen"
"""Suffix of the arms that show the guidance of the start of training."""
LIBRARY, START = "library.db", "library-start.db"
"""Files in a run's folder: the library that learns, and a copy of its initial state."""
SHOWN, GATE_LOG = "shown.json", "gate.jsonl"
"""In a checkpoint: counts of shown items, and the records of the gate. In a run's folder: the gate's answers."""
GUIDANCE_WORDS = (
    "- strategy warning skill remedy insight guardrail : ` . ( ) , ; not when in a similar situation failed led to "
    "return of 0 1 2 3 4 5 6 7 8 9 10"
)
"""Words that retrieval adds to those of items and steps; a word tokenizer must know them."""


class Stage:
    """The models, engine, roles, environment and libraries of a run."""

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
        """Build the engine and the roles around a base model.

        Args:
            config: The settings of the run.
            environment: The environment; agents work on clones of it.
            explorer: Plays the episodes of random actions.
            base: The base model and its tokenizer.
            library: The library that learns.
            start: The library at the start of the run, for the frozen arms; None if no arm uses one.
            out: Folder of the run.
            plays: False in a process that only helps with updates; it opens no remote engine.
        """
        self.config, self.environment, self.explorer, self._out = config, environment, explorer, out
        self.library, self._start = library, start
        model, self.tokenizer = base
        self.transcript = Transcript(self.tokenizer)
        trained = base_models.prepare_for_roles(model, list(config.roles), config.model, config.run.seed)
        # sharding requires adapters, so all roles share this one model
        if (workers := get_team()) is not None and workers.shards:
            workers.shard_base(next(iter(trained.values())))
        # Only the process that plays may connect to a server or start vLLM.
        elsewhere = config if plays else replace(config, engine=EngineConfig())
        self.engine = open_engine(elsewhere, next(iter(trained.values())), self.tokenizer, out)
        self.gate = open_gate(config.gate, self.engine, self.transcript)
        self.diversity = Diversity(seed=config.run.seed)
        self.roles = {name: self._role(name, part, trained[name]) for name, part in config.roles.items()}
        self._agents: dict[tuple[str, float, bool], Agent] = {}
        self._policies: dict[float, TokenPolicy] = {}
        self.snapshot = ""
        """Name of the library version in use; stored with every sample."""

    @classmethod
    def build(cls, config: TrainConfig, out: Path) -> "Stage":
        """Build a new session in a run's folder. The tokenizer of a tiny base learns the explored words."""
        environment = open_world(config.environment)
        explorer = Explorer(environment, config.explore)
        out.mkdir(parents=True, exist_ok=True)
        if config.library.path and config.uses_library:
            copy_library(config.library.path, out / LIBRARY)
        library, start = _open_libraries(config, out)
        texts: Iterable[str] = ()
        if config.model.base == "tiny":
            question = [QUESTION] if config.gate.kind == "policy" else []
            texts = words(explorer.trajectories(config.explore.worlds), [*_collect_library_words(library), *question])
        base = base_models.build_base(config.model, texts, config.run.seed)
        return cls(config, environment, explorer, base, library, start, out)

    @classmethod
    def restore(cls, checkpoint: Path, out: Path, config: TrainConfig | None = None, *, plays: bool = True) -> "Stage":
        """Restore a session from a checkpoint, weights and libraries included.

        Args:
            checkpoint: Folder of the checkpoint.
            out: Folder to work in; the libraries are copied there.
            config: Settings to use instead of the checkpoint's own.
            plays: False in a process that only helps with updates.
        """
        config = config or read_config(checkpoint)
        environment = open_world(config.environment)
        out.mkdir(parents=True, exist_ok=True)
        for name in (LIBRARY, START):
            if (checkpoint / name).exists():
                put_library(checkpoint / name, out / name)
        library, start = _open_libraries(config, out)
        base = base_models.read_base(checkpoint / BASE, config.model)
        stage = cls(config, environment, Explorer(environment, config.explore), base, library, start, out, plays=plays)
        stage._load_roles(checkpoint)
        return stage

    def save(self, folder: Path) -> None:
        """Write what `restore` needs: settings, base model, role states and libraries."""
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
        """Return the settings as plain values."""
        from .config.schema import as_dict

        return as_dict(self.config)

    def _load_roles(self, checkpoint: Path) -> None:
        """Load the roles, the diversity counts and the gate from a checkpoint."""
        import torch

        for name, role in self.roles.items():
            saved = torch.load(checkpoint / f"{name}.pt", map_location="cpu", weights_only=True)
            role.load_state_dict(saved["state"])
            # continue the saved numbering: buffered samples refer to these versions
            self.engine.load_adapter(name, saved["version"], role.weights())
        shown = json.loads((checkpoint / SHOWN).read_text(encoding="utf-8"))
        self.diversity.load_state_dict(shown["diversity"])
        if self.gate is not None and shown["gate"] is not None:
            self.gate.load_state_dict(shown["gate"])

    def _role(self, name: str, config: RoleConfig, model: Any) -> Role:
        """Build a role by its name."""
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
        """Return the model of the first role."""
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
        """Play episodes of every arm in every task instance.

        Args:
            worlds: The task instances.
            arms: Episodes per task instance, by arm.
            salt: Distinguishes the random numbers of this call from those of other calls.
            temperature: Sampling temperature of the policy.
            learning: True lets roles sample the guidance that they learn from; false lets them choose greedily.

        Returns:
            The rollouts, ordered by task instance, then arm, then copy.
        """
        specs = [
            Spec(fold, seed, arm, copy, memory=self._memory((fold, seed), arm, worlds), salt=salt)
            for fold, seed in worlds
            for arm, copies in arms.items()
            for copy in range(copies)
        ]
        specs = await self._prepare_specs(specs, learning)
        agents = {arm: self._agent(arm, temperature, learning) for arm in arms}
        self._policies[temperature].snapshot = self.snapshot
        rollouts: list[Rollout] = []
        for at in range(0, len(specs), CONCURRENT):
            rollouts += await collect(agents, self.engine, specs[at : at + CONCURRENT])
        return rollouts

    def _memory(self, world: Task, arm: str, worlds: Sequence[Task]) -> str | None:
        """Return the text shown at the start of an episode: from this task instance or from another."""
        kind = self.config.get_guidance(arm.removesuffix(FROZEN))
        if kind == "experience":
            return self.explorer.experience(world)
        if kind == "another":
            candidates = [*worlds, *self.config.explore.worlds.all]
            return self.explorer.experience(candidates[(candidates.index(world) + 1) % len(candidates)])
        return None

    async def _prepare_specs(self, specs: list[Spec], learning: bool) -> list[Spec]:
        """Let the roles fill in the guidance of the arms with guidance `role`."""
        prepared = dict(enumerate(specs))
        for frozen in (False, True):
            chosen = [
                at
                for at, spec in prepared.items()
                if self.config.get_guidance(spec.arm.removesuffix(FROZEN)) == "role"
                and spec.arm.endswith(FROZEN) is frozen
            ]
            # one role after another: a later one sees the text of an earlier one in `spec.memory`
            for role in self.roles.values() if chosen else ():
                given = [prepared[at] for at in chosen]
                # The greedy path stores nothing, so an evaluation leaves no trace in the training buffers.
                answer = role.prepare(given, frozen=frozen) if learning or frozen else role.choose(given)
                prepared.update(zip(chosen, await answer, strict=True))
        return [prepared[at] for at in range(len(specs))]

    def _agent(self, arm: str, temperature: float, learning: bool) -> Agent:
        """Return the agent of an arm; agents are cached."""
        # shared by all arms, so `play` sets the snapshot in one place
        policy = self._policies.setdefault(
            temperature, TokenPolicy(self.engine, self.transcript, temperature=temperature)
        )
        if (cached := self._agents.get((arm, temperature, learning))) is not None:
            return cached
        recalls = self.config.get_guidance(arm.removesuffix(FROZEN)) == "library"
        library: Any = self._start if arm.endswith(FROZEN) and self._start is not None else self.library
        if recalls:
            library = OtherWorlds(library)
        if learning and recalls and self.config.library.diverse:
            library = DiverseLibrary(library, self.diversity)
        retrieval: Guidance = RetrievalGuidance()
        if self.gate is not None and not arm.endswith(FROZEN):
            retrieval = GatedGuidance(retrieval, self.gate)
        agent = self._agents[arm, temperature, learning] = Agent(
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
        return agent

    # -- learning -----------------------------------------------------------------------------------

    @property
    def readers(self) -> list[Reader]:
        """Return the roles that read in the background while episodes are played."""
        return [role for role in self.roles.values() if isinstance(role, Reader)]

    def distribute(self, rollouts: Sequence[Rollout]) -> None:
        """Pass the rollouts to every role; pass the outcomes without guidance and the item effects to the gate."""
        self.diversity.settle()
        for role in self.roles.values():
            role.collect(rollouts)
        if self.gate is None:
            return
        for rollout in unaided(rollouts):
            self.gate.record_scores(rollout.trajectory.steps[0].pre.task, [float(bool(rollout.trajectory.success))])
        for _, item, use in uses_of(rollouts):
            if use.control:
                self.gate.record_differences(item, use.differences)

    def log_gate(self, iteration: int, kind: str = "train") -> dict[str, float]:
        """Return the counts of the gate's answers since the last call, and append each answer to the log file."""
        if self.gate is None:
            return {}
        answers = self.gate.drain()
        with (self._out / GATE_LOG).open("a", encoding="utf-8") as file:
            file.writelines(
                # sorted: answers arrive in the order of scheduling, which must not show in the file
                sorted(json.dumps({"iteration": iteration, "kind": kind, **answer}) + "\n" for answer in answers)
            )
        counts = Counter({"accept": 0, "refine": 0, "reject": 0})
        for answer in answers:
            counts[answer["answer"]] += answer["times"]
        return {f"gate/{name}": float(number) for name, number in counts.items()}

    async def update_library(self, iteration: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Record the rollouts, collect what the reading roles wrote, and evolve and merge on schedule."""
        config, metrics = self.config.library, dict[str, float]()
        learns = self.config.uses_library and config.learn
        if learns:
            # before the readers: they look queued episodes up in the library
            self.library.record_many([rollout.trajectory for rollout in rollouts])
        for name, role in self.roles.items():
            if isinstance(role, Reader):
                metrics.update({f"{name}/{key}": value for key, value in (await role.written(rollouts)).items()})
        if not learns:
            return metrics
        # A fresh handle makes the result depend on the file alone, so that a resumed run matches exactly.
        with ExperienceLibrary.open(self.library.path, self.library.embedder, self.library.namespace) as fresh:
            if config.evolve_every and iteration % config.evolve_every == 0:
                fresh.evolve()
            if config.merge_every and iteration % config.merge_every == 0:
                metrics["library/merged"] = merge_pass(fresh)
        self.library.forget_findings()  # a resumed run starts with an empty cache, so this one must as well
        return {**metrics, "library/episodes": self.library.episodes, "library/items": len(self.library.items())}

    def arms_to_evaluate(self, copies: int) -> dict[str, int]:
        """Return the episodes per task instance of every arm, with a frozen copy of each arm that learns."""
        arms = dict.fromkeys(self.config.arms, copies)
        learning = [arm for arm in arms if self.config.get_guidance(arm) in LEARNS]
        return {**arms, **{f"{arm}{FROZEN}": copies for arm in learning}}

    def close(self) -> None:
        """Close the agents, engine, environments and libraries."""
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
    """Return the settings that a checkpoint was saved with."""
    return of(json.loads((checkpoint / "config.json").read_text(encoding="utf-8")))


def _open_libraries(config: TrainConfig, out: Path) -> tuple[ExperienceLibrary, ExperienceLibrary | None]:
    """Return the library that learns and its initial copy.

    Without recall and recording, return an empty library in memory and None.
    """
    if not config.uses_library:
        return ExperienceLibrary.open(":memory:"), None
    library = ExperienceLibrary.open(out / LIBRARY)
    # a resumed run brings the copy in its checkpoint: the library has changed since the start
    if not (out / START).exists():
        copy_library(out / LIBRARY, out / START)
    return library, ExperienceLibrary.open(out / START, read_only=True)


def _collect_library_words(library: ExperienceLibrary) -> list[str]:
    """Return the texts that recall may show, for the vocabulary of a word tokenizer."""
    items = library.items()
    texts = [f"{item.title} {item.body} {item.when_not_to_use}" for item in items]
    return [GUIDANCE_WORDS, WORDS, OUTCOMES, *texts]


def failures(rollouts: Sequence[Rollout]) -> Counter[str]:
    """Return the number of excluded episodes by reason."""
    return Counter(rollout.failed for rollout in rollouts if rollout.failed)
