"""How the agent's parts learn together: rollouts through the runtime, exact credit, roles, checkpoints.

    report = train("examples/train_coin.yaml")

Names are imported when they are first used, so that `import hardwon.trainers` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import TrainConfig as TrainConfig
    from .engine import Engine as Engine
    from .engine_chat import EngineChatModel as EngineChatModel
    from .engine_local import LocalEngine as LocalEngine
    from .engine_server import ServerEngine as ServerEngine
    from .engine_vllm import VllmEngine as VllmEngine
    from .evaluate import evaluate_checkpoint as evaluate_checkpoint, evaluate_policy as evaluate_policy
    from .guide_speech import TrainedGuidance as TrainedGuidance
    from .roles import PolicyRole as PolicyRole, Role as Role
    from .rollout import TokenPolicy as TokenPolicy
    from .run import TrainReport as TrainReport, train as train

_HOMES = {
    "Engine": "engine",
    "EngineChatModel": "engine_chat",
    "LocalEngine": "engine_local",
    "PolicyRole": "roles",
    "Role": "roles",
    "ServerEngine": "engine_server",
    "TokenPolicy": "rollout",
    "TrainConfig": "config",
    "TrainReport": "run",
    "TrainedGuidance": "guide_speech",
    "VllmEngine": "engine_vllm",
    "evaluate_checkpoint": "evaluate",
    "evaluate_policy": "evaluate",
    "train": "run",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
