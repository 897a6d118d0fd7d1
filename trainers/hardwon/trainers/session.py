"""The session: the objects that a run consists of, built from settings or restored from a checkpoint.

    session = Session.open(config, out)
    player = Player(session)

A session plays and learns nothing: `player` plays its episodes, `learning` passes them on, and `loop` decides
what happens when.
"""

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.privacy.private_files import refuse_links
from hardwon.runtime import Environment

from .algorithms.parallel import get_team
from .algorithms.terms import add_horizon
from .checkpoint import Tell, copy_library, copy_start, put_library
from .config import loading
from .config.schema import EngineConfig, RoleConfig, TrainConfig, as_dict
from .config.sources import asks_own_model
from .engines import base_models
from .engines.base import Engine
from .engines.base_models import BASE
from .engines.factory import open_engine
from .models.pretrained import require_base
from .prompting import instructions
from .prompting.factory import open_format
from .roles.base import Parts, Role
from .roles.registry import ROLES, check_settings
from .roles.writing import GRADES, MARKS, OUTCOMES
from .rollouts.explore import Explorer, check_seeds, learn_by_playing, open_world, words
from .rollouts.opening import TAGS
from .rollouts.paths import Demonstrations, check_origins
from .rollouts.reporting import Reporting
from .sources import SourceParts, Sources, open_source
from .sources.local_judge import WORDS as WORDS_OF_ANSWERS

SIGNALS = "sources.state"
"""In a checkpoint: the states of the signal sources, if there are any."""
LIBRARY, START = "library.db", "library-start.db"
"""Files in a run's folder: the library that learns, and a copy of its initial state."""
INSTRUCTIONS = "instructions.json"
"""In a checkpoint: the version and the digests of the roles' instructions."""
GUIDANCE_WORDS = (
    "- strategy warning skill remedy insight guardrail : ` . ( ) , ; not when in a similar situation failed led to "
    "return of 0 1 2 3 4 5 6 7 8 9 10 add update"
)
"""Words that retrieval adds to those of items and steps; a word tokenizer must know them.

The size of the vocabulary decides the weights of a seed, so words that are no longer needed stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The objects of a run, in the order in which each is built from those above it."""

    config: TrainConfig
    out: Path
    """Folder of the run."""
    environment: Environment
    """Agents work on clones of it."""
    explorer: Explorer
    """Plays the episodes of random actions."""
    library: ExperienceLibrary
    """The library that learns."""
    start: ExperienceLibrary | None
    """The library at the start of the run, for the frozen arms; None if no arm uses one."""
    tokenizer: Any
    prompts: Any
    """The prompt format of the base."""
    engine: Engine
    roles: Mapping[str, Role]
    sources: Sources
    """Sources of signals about the policy's turns."""
    demonstrations: Demonstrations
    """Successes of training instances, for composers and extra examples."""

    @classmethod
    def open(
        cls,
        config: TrainConfig,
        out: Path,
        *,
        checkpoint: Path | None = None,
        plays: bool = True,
        recalled: str | Path | None = None,
        tell: Tell = lambda _: None,
    ) -> "Session":
        """Build a session from the bottom up, and load a checkpoint into it if there is one.

        Args:
            config: The settings of the run.
            out: Folder to work in, which receives the libraries.
            checkpoint: Folder of the checkpoint with the weights and libraries. None starts a new run.
            plays: False in a process that only helps with updates; it opens no remote engine.
            recalled: Library to recall from in place of the checkpoint's own; a copy is opened.
            tell: Receives a line of progress now and then while task instances are explored.
        """
        require_base(config.model.base)
        # before anything is played, which may take minutes
        for name, role in config.roles.items():
            check_settings(role, name)
        out.mkdir(parents=True, exist_ok=True)
        refuse_links(out)
        # The environment and the library come before the base: a tiny base learns its vocabulary from them.
        environment = cast(Environment, Reporting(open_world(config.environment)))
        if checkpoint is None:
            check_seeds(environment, config)
        is_compact = config.model.is_compact
        explorer = Explorer(environment, config.explore, outcome=config.outcome, is_compact=is_compact, tell=tell)
        check_origins(environment, config.tasks.demonstrations)
        check_origins(environment, ["gold"] * (config.explore.policy == "gold"), "explore.policy")
        demonstrations = Demonstrations(
            environment, config.tasks.demonstrations, explorer.source, outcome=config.outcome
        )
        library, start = _open_libraries(config, environment, explorer, out, checkpoint, recalled, tell)
        base, tokenizer = _open_base(config, explorer, library, checkpoint)
        models = base_models.prepare_for_roles(base, list(config.roles), config.model, config.run.seed)
        first = next(iter(models.values()))
        # Sharding requires adapters, so all roles share this one model.
        if (team := get_team()) is not None and team.shards:
            team.shard_base(first)
        builder = config.policy.build_prompts()
        prompts: Any = open_format(config.model, tokenizer, environment=environment, builder=builder)
        # Only the process that plays may connect to a server or start vLLM.
        engine = _open_engine(config if plays else replace(config, engine=EngineConfig()), first, tokenizer, out)

        def build_role(name: str) -> Role:
            parts = Parts(
                _follow_horizon(name, config), models[name], prompts, engine, library, config.run.seed,
                explorer.source, demonstrations.find,
                explored=lambda task, seed: explorer.explored((task, seed)),
                episodes=lambda: explorer.trajectories(config.explore.worlds), instances=config.explore.worlds.all,
                trained=config.tasks.train.all,
                recall=config.library.recall, environment=environment, outcome=config.outcome, policy=config.policy,
                temperature=config.run.temperature if name == "policy" else 1.0,
            )  # fmt: skip
            return _build_role(name, parts)

        session = cls(
            config=config, out=out, environment=environment, explorer=explorer, library=library, start=start,
            tokenizer=tokenizer, prompts=prompts, engine=engine,
            roles={name: build_role(name) for name in config.roles},
            sources=_open_sources(config, models["policy"], prompts, engine, environment, explorer),
            demonstrations=demonstrations,
        )  # fmt: skip
        if checkpoint is not None:
            session._load(checkpoint)
        return session

    @classmethod
    def restore(
        cls,
        checkpoint: Path,
        out: Path,
        config: TrainConfig | None = None,
        *,
        plays: bool = True,
        recalled: str | Path | None = None,
    ) -> "Session":
        """Restore the session of a checkpoint, with the checkpoint's own settings unless you pass others."""
        return cls.open(config or read_config(checkpoint), out, checkpoint=checkpoint, plays=plays, recalled=recalled)

    def save(self, folder: Path) -> None:
        """Write what `open` reads from a checkpoint: settings, base model, role states and libraries."""
        import torch

        (folder / "config.json").write_text(json.dumps(as_dict(self.config), indent=2) + "\n", encoding="utf-8")
        (folder / INSTRUCTIONS).write_text(json.dumps(instructions.describe(), indent=2) + "\n", encoding="utf-8")
        (folder / BASE).mkdir()
        first = next(iter(self.roles.values()))
        base_models.save_base(first.model, self.tokenizer, folder / BASE, self.config.model)
        for name, role in self.roles.items():
            state = {"version": self.engine.versions()[name], "state": role.state_dict()}
            torch.save(state, folder / f"{name}.pt")
        if self.sources:
            torch.save(self.sources.state_dict(), folder / SIGNALS)
        for name, library in ((LIBRARY, self.library), (START, self.start)):
            if library is not None and library.path != ":memory:":
                copy_library(library.path, folder / name)

    def _load(self, checkpoint: Path) -> None:
        """Load the roles and the signal sources from a checkpoint."""
        import torch

        check_instructions(self.config, checkpoint, self.config.roles)
        for name, role in self.roles.items():
            saved = torch.load(checkpoint / f"{name}.pt", map_location="cpu", weights_only=True)
            role.load_state_dict(saved["state"])
            # continue the saved numbering: buffered samples refer to these versions
            if saved["version"]:  # 0 inside the warm start, before the engine serves any
                self.engine.load_adapter(name, saved["version"], role.weights())
        if self.sources:
            self.sources.load_state_dict(torch.load(checkpoint / SIGNALS, map_location="cpu", weights_only=True))

    @property
    def context(self) -> int | None:
        """Return the longest sequence that the policy's model reads, in tokens; None if it does not say."""
        return base_models.read_context(self.roles["policy"].model)

    def close(self) -> None:
        """Close the engine, environments and libraries. Close the players of the session first."""
        if (close := getattr(self.engine, "close", None)) is not None:
            close()
        self.explorer.close()
        self.demonstrations.close()
        self.environment.close()
        self.library.close()
        if self.start is not None:
            self.start.close()


def read_config(checkpoint: Path) -> TrainConfig:
    """Return the settings that a checkpoint was saved with."""
    try:
        return loading.of(json.loads((checkpoint / "config.json").read_text(encoding="utf-8")))
    except ConfigError as error:
        raise ConfigError(f"{checkpoint} has other settings than this version reads: {error}") from error


def check_instructions(config: TrainConfig, checkpoint: Path, roles: Iterable[str]) -> None:
    """Check that some roles of a checkpoint were trained on the instructions of this version, if prompts have any."""
    if not config.model.is_compact:
        saved = json.loads((checkpoint / INSTRUCTIONS).read_text(encoding="utf-8"))
        instructions.check(saved, str(checkpoint), roles)


def _open_engine(config: TrainConfig, model: Any, tokenizer: Any, out: Path) -> Engine:
    """Open the engine; if episodes are played while others are learned from, it samples with a copy of the model."""
    plays_ahead = config.rollouts.max_lag and config.engine.url is None
    return open_engine(config, copy.deepcopy(model) if plays_ahead else model, tokenizer, out)


def _open_libraries(
    config: TrainConfig,
    environment: Environment,
    explorer: Explorer,
    out: Path,
    checkpoint: Path | None,
    recalled: str | Path | None,
    tell: Tell,
) -> tuple[ExperienceLibrary, ExperienceLibrary | None]:
    """Return the library that learns and its initial copy, from `recalled` or else the checkpoint if there is one.

    Without recall and recording, return an empty library in memory and None.
    """
    if recalled is not None:
        copy_start(str(recalled), out / LIBRARY)
    elif checkpoint is not None:
        for name in (LIBRARY, START):
            if (checkpoint / name).exists():
                put_library(checkpoint / name, out / name)
    elif config.library.path and config.uses_library:
        copy_start(config.library.path, out / LIBRARY)
    if not config.uses_library:
        return ExperienceLibrary.open(":memory:"), None
    library = ExperienceLibrary.open(out / LIBRARY)
    if checkpoint is None and config.library.explored:
        for worlds in config.library.explored.values():
            if config.explore.policy == "episodic":
                steps = config.explore.steps
                learn_by_playing(library, environment, worlds.all, steps, outcome=config.outcome, tell=tell)
            else:
                library.record_many(explorer.trajectories(worlds))
        library.evolve()
    # a resumed run brings the copy in its checkpoint: the library has changed since the start
    if not (out / START).exists():
        copy_library(out / LIBRARY, out / START)
    return library, ExperienceLibrary.open(out / START, read_only=True)


def _open_base(
    config: TrainConfig, explorer: Explorer, library: ExperienceLibrary, checkpoint: Path | None
) -> tuple[Any, Any]:
    """Return the base model and its tokenizer. The tokenizer of a new tiny base learns the explored words."""
    if checkpoint is not None:
        return base_models.read_base(checkpoint / BASE, config.model)
    texts: list[str] = []
    if config.model.base == "tiny":
        question = [*TAGS] if config.policy.speech == "tagged" else []
        question += [GRADES] if config.outcome != "success" else []
        question += [WORDS_OF_ANSWERS] if asks_own_model(config.roles["policy"].sources) else []
        question += [MARKS] if "extractor" in config.roles else []
        texts = words(explorer.trajectories(config.explore.worlds), [*_collect_library_words(library), *question])
    return base_models.build_base(config.model, texts, config.run.seed)


def _collect_library_words(library: ExperienceLibrary) -> list[str]:
    """Return the texts that recall may show, for the vocabulary of a word tokenizer."""
    items = library.items.find()
    texts = [f"{item.title} {item.body} {item.when_not_to_use}" for item in items]
    return [GUIDANCE_WORDS, OUTCOMES, *texts]


def _open_sources(
    config: TrainConfig, model: Any, prompts: Any, engine: Engine, environment: Environment, explorer: Explorer
) -> Sources:
    """Return the sources of the policy's signals."""
    policy = config.roles["policy"]
    parts = SourceParts(
        model,
        prompts,
        engine,
        environment,
        config.run.seed,
        config.run.temperature,
        policy.learner.budget,
        explorer.source,
    )
    return Sources({name: open_source(name, settings, parts) for name, settings in policy.sources.items()})


def _follow_horizon(name: str, config: TrainConfig) -> RoleConfig:
    """Return the settings of a role; the terms of the policy's loss follow the horizon."""
    role = config.roles[name]
    if name != "policy":
        return role
    terms = {term: {**add_horizon(term, config.environment.max_steps), **own} for term, own in role.loss.terms.items()}
    return replace(role, loss=replace(role.loss, terms=terms))


def _build_role(name: str, parts: Parts) -> Role:
    """Build a role by its name."""
    if name not in ROLES:
        raise UnknownName.of("role", name, ROLES)
    return ROLES[name](parts)
