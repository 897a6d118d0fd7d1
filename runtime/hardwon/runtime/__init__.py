"""The agent runtime: the loop, policies, planners, environments, guidance, teams and integrations.

Names are imported on first use, so that `import hardwon.runtime` stays fast.
"""

from typing import TYPE_CHECKING

from hardwon.memory.lazy_names import attach_names

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
    from .integrations.functions import FunctionEpisode as FunctionEpisode, remember as remember
    from .integrations.langgraph_store import HardwonStore as HardwonStore
    from .integrations.middleware import ExperienceMiddleware as ExperienceMiddleware
    from .integrations.otel import HardwonInstrumentor as HardwonInstrumentor
    from .interfaces.plans import Plan as Plan, PlannedStep as PlannedStep
    from .interfaces.types import (
        Context as Context,
        Decision as Decision,
        Environment as Environment,
        Info as Info,
        Policy as Policy,
    )
    from .llm.extractor import ChatExtractor as ChatExtractor
    from .planning.chat_planner import ChatPlanner as ChatPlanner
    from .planning.composer import DemonstrationPlanner as DemonstrationPlanner
    from .planning.plans import Planner as Planner, SkillPlanner as SkillPlanner
    from .policies.chat import ChatPolicy as ChatPolicy
    from .policies.episodic import EpisodicPolicy as EpisodicPolicy, RandomPolicy as RandomPolicy
    from .policies.lookahead import LookaheadPolicy as LookaheadPolicy
    from .teams.chat_roles import ChatAdmission as ChatAdmission
    from .teams.sharing_policy import (
        AdmitAll as AdmitAll,
        AdmitNone as AdmitNone,
        LogisticAdmission as LogisticAdmission,
        RuleAdmission as RuleAdmission,
    )
    from .teams.team import Team as Team, TeamResult as TeamResult

__all__, __getattr__, __dir__ = attach_names(__name__, extra="agent")
