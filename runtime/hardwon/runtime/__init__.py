"""The agent runtime: the loop, policies, planners, environments, guidance, teams and integrations.

Names are imported on first use, so that `import hardwon.runtime` stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import Agent as Agent, Event as Event, Result as Result
    from .environments import open_environment as open_environment
    from .environments.babyai import BabyAI as BabyAI
    from .environments.textworld import TextWorldExpress as TextWorldExpress
    from .environments.tools.environment import ToolEnvironment as ToolEnvironment
    from .environments.tools.mcp import McpEnvironment as McpEnvironment, McpTools as McpTools
    from .guidance.base import (
        AwaitedGuidance as AwaitedGuidance,
        Guidance as Guidance,
        Hint as Hint,
        RetrievalGuidance as RetrievalGuidance,
        WarmUpGuidance as WarmUpGuidance,
    )
    from .guidance.gated import GatedRetrieval as GatedRetrieval
    from .guidance.generated import PromptedGuidance as PromptedGuidance
    from .integrations.langgraph_store import HardwonStore as HardwonStore
    from .integrations.middleware import ExperienceMiddleware as ExperienceMiddleware
    from .interfaces.types import (
        Context as Context,
        Decision as Decision,
        Environment as Environment,
        Info as Info,
        Policy as Policy,
    )
    from .llm.extractor import ChatExtractor as ChatExtractor
    from .planning.chat_planner import ChatPlanner as ChatPlanner
    from .planning.plans import (
        Plan as Plan,
        PlannedStep as PlannedStep,
        Planner as Planner,
        SkillPlanner as SkillPlanner,
    )
    from .policies.chat import ChatPolicy as ChatPolicy
    from .policies.episodic import EpisodicPolicy as EpisodicPolicy, RandomPolicy as RandomPolicy
    from .teams.chat_roles import ChatAdmission as ChatAdmission
    from .teams.sharing_policy import (
        AdmitAll as AdmitAll,
        AdmitNone as AdmitNone,
        LogisticAdmission as LogisticAdmission,
        RuleAdmission as RuleAdmission,
    )
    from .teams.team import Team as Team, TeamResult as TeamResult

_HOMES = {
    "AdmitAll": "teams.sharing_policy",
    "AdmitNone": "teams.sharing_policy",
    "Agent": "agent",
    "AwaitedGuidance": "guidance.base",
    "BabyAI": "environments.babyai",
    "ChatAdmission": "teams.chat_roles",
    "ChatExtractor": "llm.extractor",
    "ChatPlanner": "planning.chat_planner",
    "ChatPolicy": "policies.chat",
    "Context": "interfaces.types",
    "Decision": "interfaces.types",
    "Environment": "interfaces.types",
    "EpisodicPolicy": "policies.episodic",
    "Event": "agent",
    "ExperienceMiddleware": "integrations.middleware",
    "GatedRetrieval": "guidance.gated",
    "Guidance": "guidance.base",
    "Hint": "guidance.base",
    "Info": "interfaces.types",
    "McpEnvironment": "environments.tools.mcp",
    "McpTools": "environments.tools.mcp",
    "LogisticAdmission": "teams.sharing_policy",
    "Plan": "planning.plans",
    "PlannedStep": "planning.plans",
    "Planner": "planning.plans",
    "Policy": "interfaces.types",
    "PromptedGuidance": "guidance.generated",
    "RandomPolicy": "policies.episodic",
    "Result": "agent",
    "RetrievalGuidance": "guidance.base",
    "RuleAdmission": "teams.sharing_policy",
    "SkillPlanner": "planning.plans",
    "HardwonStore": "integrations.langgraph_store",
    "Team": "teams.team",
    "TeamResult": "teams.team",
    "TextWorldExpress": "environments.textworld",
    "ToolEnvironment": "environments.tools.environment",
    "WarmUpGuidance": "guidance.base",
    "open_environment": "environments",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
