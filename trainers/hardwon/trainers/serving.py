"""Trained roles in production: a policy, a guide, an extractor and an admission from one export.

    roles = load_roles("runs/twc/export")
    agent = Agent(
        roles.policy, library, environment,
        guidance=roles.guidance, extractor=roles.extractor, recall_k=roles.recall_k, planner=roles.planner,
    )
    team = Team(agents, bank, roles.admission, access="show")

    agent = Agent(load_policy("models/smollm2"), library, environment)     # a pretrained model, as it is

Each role is asked through the same objects as in training, so it reads the same tokens. All of them share one base,
and every request runs in one event loop, so any thread and any loop may call them.
"""

import asyncio
import warnings
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hardwon.memory import Estimate, Item, Trajectory
from hardwon.memory.errors import ConfigError, MissingExtra
from hardwon.memory.records import Add, Operation, Return
from hardwon.runtime.guidance.base import AwaitedGuidance, Guidance, Hint, RetrievalGuidance
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.runtime.llm.chat_model import in_own_loop
from hardwon.runtime.teams.sharing_policy import Choice, SharingInput

from .config.kinds import LESSONS, PASTES, SHOWS_PATHS, TELLS
from .config.policy import PolicySettings
from .config.schema import ModelConfig
from .engines.base import Engine
from .engines.base_models import BASE, load_base, load_tokenizer, read_context, select_device
from .exports import MANIFEST, Manifest, compute_fingerprint, find_roles, read_manifest
from .gating.consulting import ConsultedGuidance
from .gating.item_guidance import ItemGuidance
from .gating.pasted import PastedEpisodes
from .models.pretrained import check_folder
from .prompting.base import PromptFormat
from .prompting.chat import ChatFormat
from .prompting.factory import open_format
from .roles.extractor import ExtractorSettings
from .roles.guides.role import RECALLED, GuideSettings
from .roles.guides.speech import TrainedGuidance
from .rollouts.rollout import Spec, TokenPolicy, enter_episode

if TYPE_CHECKING:
    from .engines.local import LocalEngine
    from .gating.ranking import PreferenceValue

T = TypeVar("T")
READ = 16_384
"""Tokens of earlier turns that are kept, of all episodes; the least recently used one is read again when it goes on."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of an export; None for a role that was not trained."""

    policy: "ServedPolicy | None" = None
    guidance: Guidance | None = None
    """The trained guide. Without one, what the policy read in training; None for all that the library recalls."""
    extractor: "ServedExtractor | None" = None
    admission: "ServedAdmission | None" = None
    recall_k: int = 5
    """Largest number of items, and of similar steps, that a recall showed in training; an `Agent` takes it."""
    guardrails: bool = True
    """Whether guardrails refused actions in training; an `Agent` takes it. Raw episodes are shown without them."""
    planner: str | None = None
    """The planner whose plans the policy read in training; an `Agent` takes it. Raw episodes are shown without one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the roles that are there."""
        guide = self.guidance if isinstance(self.guidance, ServedGuidance) else None
        every = {"policy": self.policy, "guide": guide, "extractor": self.extractor}
        return tuple(name for name, role in {**every, "admission": self.admission}.items() if role is not None)


def load_roles(
    folder: str | Path, *, base: str | Path | None = None, device: str = "auto", temperature: float | None = None
) -> Roles:
    """Load the trained roles of an export.

    Args:
        folder: Folder that `hardwon train --export` wrote.
        base: Folder or hub name of the base, if it is elsewhere now. It must be the base of the training run.
        device: cpu, cuda, or auto, which uses a GPU if there is one.
        temperature: Sampling temperature of the policy; 0 is greedy. None takes that of the run's evaluations.

    Returns:
        The roles, as objects that an `Agent` or a `Team` takes.

    Raises:
        ConfigError: The folder is not an export, another base or other instructions than those of the training run
            would be used, or this machine does not have the device.
        MissingExtra: A package of the extra `train` is missing.
    """
    place = Path(folder)
    manifest = read_manifest(place)
    names = find_roles(place, manifest)
    if not names:
        raise ConfigError(f"{place} has the weights of none of its roles ({', '.join(manifest.roles)}).")
    tokenizer = load_tokenizer(place / names[0])
    engines = _load_engines(place, names, manifest, tokenizer, base, device)
    how = parse_settings(PolicySettings, dict(manifest.roles.get("policy", {})))
    prompts, roles = open_format(manifest.model, tokenizer, builder=how.build_prompts()), dict[str, Any]()
    heat = manifest.temperature if temperature is None else temperature
    for name in names:
        settings = dict(manifest.roles[name])
        if name == "policy":
            limit = read_context(engines[name].model)
            inner = TokenPolicy(engines[name], prompts, temperature=heat, settings=how, context=limit)
            roles["policy"] = ServedPolicy(inner, engines[name])
        elif name == "guide":
            guide = parse_settings(GuideSettings, settings)
            roles["guidance"] = ServedGuidance(_open_guidance(guide, engines[name], prompts))
        elif name == "extractor":
            tokens = parse_settings(ExtractorSettings, settings).tokens
            roles["extractor"] = ServedExtractor(engines[name], prompts, tokens)
        elif name == "admission":
            roles["admission"] = ServedAdmission(engines[name], prompts)
    if "policy" in roles and "guidance" not in roles:
        roles["guidance"] = _open_memory(manifest.guidance, place)
    pastes = isinstance(roles.get("guidance"), PastedEpisodes)
    guardrails, planner = manifest.guardrails and not pastes, None if pastes else manifest.planner
    return Roles(**roles, recall_k=manifest.recall, guardrails=guardrails, planner=planner)


def load_policy(folder: str | Path, *, device: str = "auto", temperature: float = 0.0) -> "ServedPolicy":
    """Load a pretrained chat model as a policy that chooses among the listed actions, in this process.

    The model reads an episode through its chat template. All listed actions are scored in one forward pass, and only
    what is new in a turn is read. Nothing is generated, so no answer needs repair.

    Args:
        folder: Folder of the model, as `hardwon model` writes it.
        device: cpu, cuda, or auto, which uses a GPU if there is one.
        temperature: 0 takes the action with the highest probability; above 0, an action is drawn.

    Raises:
        ConfigError: The folder holds no model, or one without a chat template.
        MissingExtra: A package of the extra `train` is missing.
    """
    place = Path(folder)
    if (place / MANIFEST).is_file():
        raise ConfigError(f"{place} is an export of trained roles; load it with load_roles, or --roles {place}.")
    check_folder(place)
    from .engines.local import LocalEngine

    model, tokenizer = load_base(place, ModelConfig(base=str(place), device=device))
    engine = LocalEngine(model, tokenizer, roles=["policy"])
    inner = TokenPolicy(engine, ChatFormat(tokenizer), temperature=temperature, context=read_context(model))
    return ServedPolicy(inner, engine)


def load_ranker(folder: str | Path, *, base: str | Path | None = None, device: str = "auto") -> "ServedValue":
    """Load the policy of an export as the judge of another policy's proposals.

    Pass it as `RankedPolicy(policy, value=...)`. An action is worth what training made it more likely than it is for
    the base, so a warm start counts as well as what came after it.

    Args:
        folder: Folder that `hardwon train --export` wrote.
        base: Folder or hub name of the base, if it is elsewhere now.
        device: cpu, cuda, or auto, which uses a GPU if there is one.

    Raises:
        ConfigError: The folder is not an export, has no policy, or has whole models instead of adapters.
        MissingExtra: A package of the extra `train` is missing.
    """
    place = Path(folder)
    manifest = read_manifest(place)
    if manifest.model.adapter is None:
        raise ConfigError(
            f"{place} has whole models, and a ranker is compared with its base, so train with model.adapter."
        )
    if not (place / "policy").is_dir():
        raise ConfigError(
            f"{place} has the roles {', '.join(manifest.roles)}; a ranker is a policy, so train roles.policy."
        )
    tokenizer = load_tokenizer(place / "policy")
    engine = _load_engines(place, ["policy"], manifest, tokenizer, base, device)["policy"]
    from .gating.ranking import PreferenceValue

    builder = parse_settings(PolicySettings, dict(manifest.roles.get("policy", {}))).build_prompts()
    return ServedValue(
        PreferenceValue(engine, open_format(manifest.model, tokenizer, builder=builder), builder=builder)
    )


def parse_settings(kind: type[T], settings: dict[str, Any]) -> T:
    """Return the settings of a role from their saved values."""
    from .config.parsing import parse

    return parse(kind, settings, "roles")


class ServedPolicy:
    """A trained policy. It keeps the tokens of each episode, so that a turn reads only what is new."""

    name = "tokens"
    reads: Literal["values", "text"] = "text"

    def __init__(self, inner: TokenPolicy, engine: Engine) -> None:
        self._inner, self._engine = inner, engine
        self._open: OrderedDict[str, tuple[Spec, int]] = OrderedDict()
        """The episodes whose tokens the engine keeps, and how many tokens each has; the last one was used last."""

    def decide(self, context: Context) -> Decision:
        """Return the next action."""
        return _wait(self._decide(context))

    async def adecide(self, context: Context) -> Decision:
        """Return the next action asynchronously."""
        return await _await(self._decide(context))

    async def _decide(self, context: Context) -> Decision:
        if not context.thread:
            return await self._inner.adecide(context)
        spec, _ = self._open.get(context.thread, (Spec("", 0, salt=context.thread), 0))
        enter_episode(spec)
        decision = await self._inner.adecide(context)
        self._open[context.thread] = spec, decision.usage.prompt_tokens
        self._open.move_to_end(context.thread)
        # an episode does not say that it is over, and its keys and values take much memory
        while len(self._open) > 1 and sum(tokens for _, tokens in self._open.values()) > READ:
            _, (oldest, _) = self._open.popitem(last=False)
            await self._engine.end(oldest.session)
        return decision


class ServedValue:
    """A trained ranker: judges the actions that another policy proposes."""

    def __init__(self, inner: "PreferenceValue") -> None:
        self._inner = inner

    def judge(self, context: Context, action: str = "") -> Estimate:
        """Return the worth of a listed action, or that of the best one."""
        return _wait(self._inner.judge(context, action))


def _open_guidance(settings: GuideSettings, engine: Engine, prompts: PromptFormat) -> AwaitedGuidance:
    """Return the guidance by a guide that decides about the recollection, or says a text."""
    if settings.says == RECALLED:
        return ConsultedGuidance(RetrievalGuidance(), engine, prompts)
    return TrainedGuidance(engine, prompts, free=settings.says == "words", most=settings.length)


def _open_memory(kind: str, folder: Path) -> Guidance | None:
    """Return the guidance that a policy read without a guide; None for that of the runtime, which shows all."""
    if kind in LESSONS:
        return ItemGuidance()
    if kind in PASTES:
        return PastedEpisodes()
    if kind in SHOWS_PATHS | TELLS:
        shows = "a path that the run explored" if kind in SHOWS_PATHS else "the text of a role that is not here"
        warnings.warn(
            f"{folder}: the policy was trained with the guidance {kind}, {shows}, which cannot be served. It reads "
            "what the library recalls; train it with an arm whose guidance is library.",
            stacklevel=3,
        )
    return None


class ServedGuidance:
    """A trained guide, which decides about the recollection, chooses one of its lines, or writes a hint."""

    def __init__(self, inner: AwaitedGuidance) -> None:
        self._inner = inner

    def propose(self, context: Context) -> Hint | None:
        """Return a hint, or None if nothing was recalled."""
        return _wait(self._inner.apropose(context))

    async def apropose(self, context: Context) -> Hint | None:
        """Return a hint asynchronously."""
        return await _await(self._inner.apropose(context))


class ServedExtractor:
    """A trained extractor, which writes the lesson of an episode."""

    def __init__(self, engine: Engine, prompts: PromptFormat, max_tokens: int) -> None:
        from .roles.writing import LessonWriter

        self._writer = LessonWriter(engine, prompts, max_tokens=max_tokens)

    def extract(self, trajectory: Trajectory, seen_items: Sequence[Item]) -> Sequence[Operation]:
        """Return the addition of the most probable lesson, or why there is none."""
        if not trajectory.steps:
            return [Return("the episode has no steps")]
        (written,) = _wait(self._writer.write(trajectory, greedy=True))
        return [Return(f"no lesson was written: {written.problem}")] if written.item is None else [Add(written.item)]


class ServedAdmission:
    """A trained admission, which decides whether a step is shared with the other members of a team."""

    name = "role"

    def __init__(self, engine: Engine, prompts: PromptFormat) -> None:
        from .roles.admission import EngineAdmission

        self._inner = EngineAdmission(engine, prompts)
        self.value = EngineAdmission.value
        """Returns what readers get for a step, as in training; a `Team` takes it."""

    async def decide(self, candidate: SharingInput) -> Choice:
        """Return whether to share a step."""
        return await _await(self._inner.decide(candidate))


def _wait(call: Coroutine[Any, Any, T]) -> T:
    """Run a call in the loop of the engines, and wait for its result in this thread."""
    result: T = in_own_loop(call).result()
    return result


async def _await(call: Coroutine[Any, Any, T]) -> T:
    """Run a call in the loop of the engines, and await its result in the current loop."""
    result: T = await asyncio.wrap_future(in_own_loop(call))
    return result


# -- weights ------------------------------------------------------------------------------------------


def _load_engines(
    folder: Path, names: Sequence[str], manifest: Manifest, tokenizer: Any, base: str | Path | None, device: str
) -> dict[str, "LocalEngine"]:
    """Return the engine of each role: one for all adapters of a base, or one for each whole model."""
    try:
        from .engines.local import LocalEngine
    except ModuleNotFoundError as missing:
        raise MissingExtra.of(missing.name or "torch", "train") from missing
    device = select_device(device)
    if manifest.model.adapter is None:
        models = {name: _load_model(folder / name, "Export the run again.") for name in names}
        return {name: LocalEngine(model.to(device).eval(), tokenizer, roles=[name]) for name, model in models.items()}
    place = _find_base(folder, manifest, base)
    remedy = f"Set model.base in {(folder / MANIFEST).absolute()} to the folder of the base."
    model = _load_model(place, remedy)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))
    if (fingerprint := compute_fingerprint(model)) != manifest.base:
        raise ConfigError(
            f"{folder} was trained on another base ({manifest.base}) than the one loaded from {place} ({fingerprint}). "
            f"{remedy}"
        )
    served = _load_adapters(model, folder, names)
    engine = LocalEngine(served.to(device).eval(), tokenizer, roles=list(names))
    return dict.fromkeys(names, engine)


def _find_base(folder: Path, manifest: Manifest, base: str | Path | None) -> str | Path:
    """Return the folder or hub name of the base; a base that the run built is in the export."""
    own = folder / BASE
    return base or (own if own.is_dir() else manifest.model.base)


def _load_model(place: str | Path, remedy: str) -> Any:
    """Load a model from a folder or the hub."""
    if Path(place).is_absolute() and not Path(place).is_dir():
        raise ConfigError(f"there is no folder {place}. {remedy}")
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    try:
        return loader.from_pretrained(str(place), dtype=torch.float32)
    except (OSError, ValueError) as error:
        # a name that is no folder here may also be a relative path, written in another folder
        tried = f"the folder {Path(place).absolute()}" + ("" if Path(place).is_dir() else f" and {place} on the hub")
        raise ConfigError(f"the model cannot be loaded (tried {tried}): {error} {remedy}") from error


def _load_adapters(model: Any, folder: Path, names: Sequence[str]) -> Any:
    """Return the base with the adapter of each role."""
    from peft import PeftModel

    try:
        first, *rest = names
        served = PeftModel.from_pretrained(model, str(folder / first), adapter_name=first)
        for name in rest:
            served.load_adapter(str(folder / name), adapter_name=name)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the adapters in {folder} do not fit the base: {error}") from error
    return served
