"""The manifest of an export: what the trained roles read and how they were asked, beside their weights.

    export/roles.json  export/policy/  export/guide/  export/extractor/  export/admission/

Weights alone do not say in which prompt format, with which settings and instructions, and on which base a role was
trained. `serving.load_roles` compares all of this before it answers with them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.arms import NO_MEMORY

from .config.kinds import RECALLS
from .config.parsing import parse
from .config.schema import ModelConfig, TrainConfig
from .models.pretrained import locate_base
from .prompting import instructions

MANIFEST = "roles.json"
"""Name of the manifest in an export's folder."""
FORMAT = 2
"""Version of the manifest."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """How the roles of an export were trained."""

    model: ModelConfig
    roles: Mapping[str, Mapping[str, Any]]
    """The settings of each role, by its name."""
    base: str
    """Fingerprint of the base under the adapters; empty if the roles are whole models."""
    temperature: float
    """Sampling temperature of the policy in evaluations."""
    recall: int
    """Largest number of items, and of similar steps, that a recall showed."""
    guidance: str
    """Kind of guidance that the policy read."""
    guardrails: bool
    """Whether guardrails refused actions where the policy recalled."""
    planner: str | None
    """The planner where the policy recalled."""
    instructions: Mapping[str, Any] = field(default_factory=instructions.describe)


def compute_fingerprint(model: Any) -> str:
    """Return a short text that identifies a base by its shape and its first embeddings, in any precision."""
    import torch

    weight = model.get_input_embeddings().weight.detach()
    rows = weight[:64].to(device="cpu", dtype=torch.bfloat16).contiguous().view(torch.int16).numpy()
    # without the number of rows, which grows if a run adds tokens
    shape = [model.config.model_type, model.config.num_hidden_layers, weight.shape[1]]
    return hashlib.blake2b(json.dumps(shape).encode() + rows.tobytes(), digest_size=8).hexdigest()


def write_manifest(folder: Path, config: TrainConfig, model: Any) -> None:
    """Write the manifest of an export."""
    base = compute_fingerprint(model) if config.model.adapter is not None else ""
    roles = {name: role.settings for name, role in config.roles.items()}
    # an export is used from other folders than that of the run
    model_config = replace(config.model, base=locate_base(config.model.base))
    library = config.library
    manifest = Manifest(
        model_config,
        roles,
        base,
        config.eval.temperature,
        recall=library.recall,
        guidance=choose_guidance(config),
        guardrails=library.guardrails,
        planner=library.planner,
    )
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def choose_guidance(config: TrainConfig) -> str:
    """Return the kind of guidance to serve a policy with: that of the first arm that recalls from the library.

    Without such an arm, it is that of the first arm that shows anything.
    """
    kinds = [kind for arm in config.arms if (kind := config.get_guidance(arm)) != NO_MEMORY]
    return next((kind for kind in kinds if kind in RECALLS), kinds[0] if kinds else NO_MEMORY)


def find_roles(folder: Path, manifest: Manifest) -> list[str]:
    """Return the names of the roles whose weights are in an export."""
    return [name for name in manifest.roles if (folder / name).is_dir()]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an export, and compare its instructions with those of this version."""
    try:
        saved = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        number, model = saved.pop("format"), parse(ModelConfig, saved.pop("model"), "model")
        manifest = Manifest(model, **saved)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{folder} is not an export of trained roles ({type(error).__name__}: {error}). "
            "Write one: hardwon train CONFIG.yaml --export FOLDER"
        ) from error
    if number != FORMAT:
        raise ConfigError(f"{folder / MANIFEST} has format {number!r}, and this version of hardwon reads {FORMAT}.")
    if not manifest.model.is_compact:
        instructions.check(manifest.instructions, str(folder), manifest.roles)
    return manifest
