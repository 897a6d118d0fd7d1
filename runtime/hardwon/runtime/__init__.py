"""How the agent acts: the LangGraph loop, policies, plans, environments, diagnosis, guidance and extraction.

Names are imported when they are first used, so that `import hardwon.runtime` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .admission import (
        AdmitAll as AdmitAll,
        AdmitNone as AdmitNone,
        LogisticAdmission as LogisticAdmission,
        RuleAdmission as RuleAdmission,
    )
    from .agent import Agent as Agent, Event as Event, Result as Result
    from .chat import ChatPolicy as ChatPolicy
    from .chat_planner import ChatPlanner as ChatPlanner
    from .environments import open_environment as open_environment
    from .environments.babyai import BabyAI as BabyAI
    from .environments.mcp_tools import McpEnvironment as McpEnvironment, McpTools as McpTools
    from .environments.textworld import TextWorldExpress as TextWorldExpress
    from .environments.tools import ToolEnvironment as ToolEnvironment
    from .episodic import EpisodicPolicy as EpisodicPolicy, RandomPolicy as RandomPolicy
    from .extraction import ChatExtractor as ChatExtractor
    from .gated import GatedRetrieval as GatedRetrieval
    from .generated import PromptedGuidance as PromptedGuidance
    from .guidance import (
        AwaitedGuidance as AwaitedGuidance,
        Guidance as Guidance,
        Hint as Hint,
        RetrievalGuidance as RetrievalGuidance,
        WarmUpGuidance as WarmUpGuidance,
    )
    from .langgraph_store import HardwonStore as HardwonStore
    from .middleware import ExperienceMiddleware as ExperienceMiddleware
    from .plan import Plan as Plan, PlannedStep as PlannedStep, Planner as Planner, SkillPlanner as SkillPlanner
    from .protocols import (
        Context as Context,
        Decision as Decision,
        Environment as Environment,
        Info as Info,
        Policy as Policy,
    )
    from .team import Team as Team, TeamResult as TeamResult
    from .team_chat import ChatAdmission as ChatAdmission

_HOMES = {
    "AdmitAll": "admission",
    "AdmitNone": "admission",
    "Agent": "agent",
    "AwaitedGuidance": "guidance",
    "BabyAI": "environments.babyai",
    "ChatAdmission": "team_chat",
    "ChatExtractor": "extraction",
    "ChatPlanner": "chat_planner",
    "ChatPolicy": "chat",
    "Context": "protocols",
    "Decision": "protocols",
    "Environment": "protocols",
    "EpisodicPolicy": "episodic",
    "Event": "agent",
    "ExperienceMiddleware": "middleware",
    "GatedRetrieval": "gated",
    "Guidance": "guidance",
    "Hint": "guidance",
    "Info": "protocols",
    "McpEnvironment": "environments.mcp_tools",
    "McpTools": "environments.mcp_tools",
    "LogisticAdmission": "admission",
    "Plan": "plan",
    "PlannedStep": "plan",
    "Planner": "plan",
    "Policy": "protocols",
    "PromptedGuidance": "generated",
    "RandomPolicy": "episodic",
    "Result": "agent",
    "RetrievalGuidance": "guidance",
    "RuleAdmission": "admission",
    "SkillPlanner": "plan",
    "HardwonStore": "langgraph_store",
    "Team": "team",
    "TeamResult": "team",
    "TextWorldExpress": "environments.textworld",
    "ToolEnvironment": "environments.tools",
    "WarmUpGuidance": "guidance",
    "open_environment": "environments",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
