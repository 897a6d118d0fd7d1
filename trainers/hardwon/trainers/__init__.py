"""How the agent's parts learn together: rollouts through the runtime, exact credit, roles, checkpoints.

    report = train("examples/train_coin.yaml")

Names are imported when they are first used, so that `import hardwon.trainers` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config.schema import TrainConfig as TrainConfig
    from .engines.base import Engine as Engine
    from .engines.chat import EngineChatModel as EngineChatModel
    from .engines.local import LocalEngine as LocalEngine
    from .engines.server import ServerEngine as ServerEngine
    from .engines.vllm import VllmEngine as VllmEngine
    from .evaluate import evaluate_checkpoint as evaluate_checkpoint, evaluate_policy as evaluate_policy
    from .roles.base import PolicyRole as PolicyRole, Role as Role
    from .roles.guide_speech import TrainedGuidance as TrainedGuidance
    from .rollouts.rollout import TokenPolicy as TokenPolicy
    from .trainer import TrainReport as TrainReport, train as train

_HOMES = {
    "Engine": "engines.base",
    "EngineChatModel": "engines.chat",
    "LocalEngine": "engines.local",
    "PolicyRole": "roles.base",
    "Role": "roles.base",
    "ServerEngine": "engines.server",
    "TokenPolicy": "rollouts.rollout",
    "TrainConfig": "config.schema",
    "TrainReport": "trainer",
    "TrainedGuidance": "roles.guide_speech",
    "VllmEngine": "engines.vllm",
    "evaluate_checkpoint": "evaluate",
    "evaluate_policy": "evaluate",
    "train": "trainer",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
