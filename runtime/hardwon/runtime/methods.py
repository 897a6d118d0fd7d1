"""The published methods that the runtime implements, as rows of the page of algorithms."""

from .environments import thoughts as thoughts
from .llm import context_builders as context_builders
from .loop import budgets as budgets, routed_recall as routed_recall
from .planning import draft_planner as draft_planner, search as search
from .policies import ranked as ranked
from .strategies import guide as guide, scaffold as scaffold
