"""How the agent's parts learn together: rollouts through the runtime, exact credit, roles, checkpoints.

    report = train("examples/train_coin.yaml")

Names are imported when they are first used, so that `import hardwon.trainers` costs nothing.
"""

from typing import TYPE_CHECKING

from hardwon.memory.lazy_names import attach_names

if TYPE_CHECKING:
    from .config.schema import TrainConfig as TrainConfig
    from .engines.base import Engine as Engine
    from .engines.local import LocalEngine as LocalEngine
    from .engines.server import ServerEngine as ServerEngine
    from .evaluate import evaluate_checkpoint as evaluate_checkpoint
    from .prompting.chat_model import EngineChatModel as EngineChatModel
    from .roles.base import PolicyRole as PolicyRole, Role as Role
    from .roles.guides.speech import TrainedGuidance as TrainedGuidance
    from .rollouts.rollout import TokenPolicy as TokenPolicy
    from .serving import (
        Roles as Roles,
        load_policy as load_policy,
        load_ranker as load_ranker,
        load_roles as load_roles,
    )
    from .trainer import TrainReport as TrainReport, train as train

__all__, __getattr__, __dir__ = attach_names(__name__, extra="train")
