"""The components of an agent by their names: policies and planners."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.interfaces.types import Environment, Policy
from hardwon.runtime.loop.clone_model import CloneModel
from hardwon.runtime.planning.composer import DemonstrationPlanner
from hardwon.runtime.planning.plans import Planner, SkillPlanner
from hardwon.runtime.planning.search_planner import SearchPlanner

from .strategy import DRAFTS

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

RANKED = "ranked:"
"""Before the name of a policy whose choices are ranked by the library's estimates."""


def as_policy(policy: "Policy | BaseChatModel | str") -> Policy:
    """Return a policy for a policy, a chat model, or a name."""
    from hardwon.runtime.policies.episodic import EpisodicPolicy, RandomPolicy
    from hardwon.runtime.policies.lookahead import LookaheadPolicy

    built_in: Mapping[str, Callable[[], Policy]] = {
        kind.name: kind for kind in (EpisodicPolicy, LookaheadPolicy, RandomPolicy)
    }
    if isinstance(policy, str) and policy in built_in:
        return built_in[policy]()
    if isinstance(policy, str) and policy.startswith(RANKED):
        from hardwon.runtime.policies.ranked import RankedPolicy

        return RankedPolicy(as_policy(policy.removeprefix(RANKED)))
    if isinstance(policy, str) and policy.startswith("folder:"):
        path = policy.removeprefix("folder:")
        raise ConfigError(f"{policy} is a model in this process; pass hardwon.trainers.load_policy({path!r}).")
    if isinstance(policy, str) and ":" not in policy:
        raise UnknownName.of("policy", policy, [*built_in, "PROVIDER:MODEL such as openai:gpt-5"])
    if isinstance(policy, Policy):
        return policy
    from hardwon.runtime.policies.chat import ChatPolicy

    return ChatPolicy(policy)


def resolve_planner(
    planner: "Planner | str | None", library: ExperienceLibrary, environment: Environment
) -> Planner | None:
    """Return a planner for a planner or its name; None for None."""
    if isinstance(planner, str) and planner.startswith(DRAFTS):
        from hardwon.runtime.planning.draft_planner import DraftPlanner

        return DraftPlanner(planner.removeprefix(DRAFTS), library)
    if isinstance(planner, str):
        planners: dict[str, Callable[[], Planner]] = {
            "skills": lambda: SkillPlanner(library),
            "demonstrations": lambda: DemonstrationPlanner(library),
            "search": lambda: SearchPlanner(library, CloneModel(environment)),
        }
        if planner not in planners:
            raise UnknownName.of("planner", planner, [*planners, f"{DRAFTS}PROVIDER:MODEL"])
        return planners[planner]()
    return planner
