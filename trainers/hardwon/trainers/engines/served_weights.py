"""The weights that a server uses for each role: an adapter under its own name, or the base.

Each version is served under a name such as `policy-v3-1f0a77c2` until its last request has finished.
"""

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError, EngineFailure

from .base import Weights
from .vllm_client import VllmClient

WEIGHTS, SHAPE = "adapter_model.safetensors", "adapter_config.json"
"""The files of a peft folder."""


@dataclass(eq=False, slots=True)
class Serving:
    """The weights that a role's requests use: an adapter, or the base."""

    name: str = ""
    """Name of the adapter; empty for the base."""
    folder: str = ""
    version: int = 0
    running: int = 0
    """Requests in progress."""
    retired: bool = False
    """Whether newer weights have replaced these."""


class ServedWeights:
    """The weights of every role of a server."""

    def __init__(self, client: VllmClient, roles: Sequence[str], folder: str | Path | None) -> None:
        self._client = client
        self.by_role = {role: Serving() for role in roles}
        """What each role uses from now on."""
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._dropping: set[asyncio.Task[None]] = set()

    def check(self, role: str) -> None:
        """Raise ConfigError unless the role is served."""
        if role not in self.by_role:
            raise ConfigError(f"role {role!r} is not served. Roles: {', '.join(self.by_role)}.")

    @contextmanager
    def lease(self, serving: Serving) -> Iterator[Serving]:
        """Keep weights loaded for the duration of this context."""
        serving.running += 1
        try:
            yield serving
        finally:
            self._give_back(serving)

    def _give_back(self, serving: Serving) -> None:
        """Count a finished use of weights. The last one unloads them if newer ones have replaced them."""
        serving.running -= 1
        if serving.retired and not serving.running:
            task = asyncio.get_running_loop().create_task(self._drop(serving))
            self._dropping.add(task)  # keeps the task from being collected
            task.add_done_callback(self._dropping.discard)

    async def hold(self) -> dict[str, Serving]:
        """Keep the current weights of every role loaded, and return them."""
        for serving in self.by_role.values():
            serving.running += 1
        return dict(self.by_role)

    async def release(self, held: Mapping[str, Serving]) -> None:
        """Let go of weights that `hold` returned; those that were replaced meanwhile are unloaded."""
        for serving in held.values():
            self._give_back(serving)

    def locate(self, role: str, version: int, weights: Weights) -> Path:
        """Return the folder of weights; tensors are written to one."""
        if isinstance(weights, Mapping):
            return write_adapter(weights, self._get_folder() / f"{role}-v{version}")
        return Path(weights)

    async def load(self, role: str, version: int, folder: Path) -> None:
        """Make the weights in a folder those of a role; see `ServerEngine.load_adapter`."""
        before = self.by_role[role]
        # the hash of the weights is in the name, so vLLM cannot reuse cached weights of another run's same version
        name = f"{role}-v{version}-{hash_adapter(folder)}"
        if name == before.name:
            return
        new = Serving(name, str(folder.absolute()), version)
        # installed before the switch, so no request names an adapter that the program does not have
        await self._client.install(new.name, new.folder)
        self.by_role[role] = new
        before.retired = True
        if not before.running:
            await self._drop(before)

    async def _drop(self, serving: Serving) -> None:
        if not serving.name:
            return
        with suppress(EngineFailure):  # an adapter that stays loaded does no harm
            await self._client.remove(serving.name)

    async def close(self) -> None:
        """Wait for the removal of adapters, disconnect, and delete temporary files."""
        # removals in progress still need the connection
        await asyncio.gather(*self._dropping)
        await self._client.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _get_folder(self) -> Path:
        """Return the folder for adapters that come as tensors."""
        if self._folder is not None:
            return Path(self._folder)
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hardwon-adapters-")
        return Path(self._temporary.name)


def hash_adapter(folder: Path) -> str:
    """Return eight hex digits that identify an adapter's weights and shape."""
    digest = hashlib.blake2b(digest_size=4)
    for name in (SHAPE, WEIGHTS):
        try:
            digest.update((folder / name).read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{folder} is not a peft folder: it has no {name}. Pass a folder that peft saved."
            ) from error
    return digest.hexdigest()


def write_adapter(weights: Mapping[str, Any], folder: Path) -> Path:
    """Write the tensors of an adapter as a peft folder. The shape is derived from the tensors."""
    from safetensors.torch import save_file

    from hardwon.trainers.models.adapters import WEIGHT

    ranks = {value.shape[0] for name, value in weights.items() if ".lora_A." in name}
    layers = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in weights})
    unknown = [name for name in weights if ".lora_A." not in name and ".lora_B." not in name]
    if unknown or len(ranks) != 1:
        raise ConfigError(
            f"vLLM serves LoRA adapters, but {unknown[0] if unknown else 'nothing'!r} is not part of one. "
            "Train with an adapter (model.adapter), or pass a peft folder."
        )
    (rank,) = ranks
    shape = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": round(WEIGHT * rank),
        "target_modules": layers,
        "bias": "none",
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, str(folder / WEIGHTS))
    (folder / SHAPE).write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")
    return folder
