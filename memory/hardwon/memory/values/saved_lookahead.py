"""The cache file of lookahead values: the fitted tables of a world, and the rows of episodes that they are fitted to.

Reading the newest episodes of a large library takes seconds, because the keys of all admissible actions are computed.
The file saves that at the next start. It holds nothing that cannot be computed from the steps; see
`storage.cache_files` for how a stale or damaged file is recognized.
"""

import json
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.situations.lookahead_keys import COLUMNS, LookaheadKeys
from hardwon.memory.storage.cache_files import Arrays

from .cells import MADE
from .lookahead_table import FIGURES, EpisodeRows, Forms, LookaheadTable, Mean, Rows

LAYOUT = f"{MADE} outlooks 2"
"""Version of the keys and of the layout of the arrays."""
FIELDS = {"steps": np.int32, "rewards": np.float64, "novelty": np.float64, "lost": np.bool_, "dead": np.bool_}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the episodes of a world have been read."""

    read: int
    """Number of episodes."""
    fitted: int
    """Number of episodes when the tables were fitted."""
    renewed: int
    """Number of episodes when the structural words were last renewed."""


def pack(table: LookaheadTable, episodes: Sequence[EpisodeRows], progress: Progress) -> Arrays:
    """Return tables and episodes as one-dimensional arrays by name."""
    arrays: dict[str, NDArray[Any]] = {
        "meta": _pack_json(
            {
                "structural": sorted(table.keys.structural),
                "forms": _pack_forms(table.forms),
                "scale": table.scale,
                "progress": [progress.read, progress.fitted, progress.renewed],
            }
        ),
        "keys": _pack_json(table.rows.list_keys()),
        "rows": table.rows.build().ravel(),
        "counts": table.counts,
        "chances": table.chances,
    }
    for name, mean, weight in zip(FIGURES, table.means.mean, table.means.weight, strict=True):
        arrays[f"mean {name}"], arrays[f"weight {name}"] = mean, weight
    arrays["lengths"] = np.array([len(episode.steps) for episode in episodes], dtype=np.int64)
    for name, dtype in {**FIELDS, "followed": np.bool_}.items():
        values = [value for episode in episodes for value in getattr(episode, name)]
        arrays[f"episode {name}"] = np.array(values, dtype=dtype)
    arrays["opened lengths"] = np.array([len(episode.opened) for episode in episodes], dtype=np.int64)
    opened = [number for episode in episodes for entry in episode.opened for number in entry]
    arrays["episode opened"] = np.array(opened, dtype=np.int32)
    return arrays


def unpack(arrays: Arrays) -> tuple[LookaheadTable, Progress]:
    """Return the tables; the episodes are unpacked only when new ones come, see `unpack_episodes`."""
    meta = json.loads(arrays["meta"].tobytes())
    rows = Rows(json.loads(arrays["keys"].tobytes()), arrays["rows"].reshape(-1, COLUMNS))
    means = Mean.stack([Mean(arrays[f"mean {name}"], arrays[f"weight {name}"]) for name in FIGURES])
    table = LookaheadTable(
        rows,
        _unpack_forms(meta["forms"]),
        LookaheadKeys(frozenset(meta["structural"])),
        means,
        chances=arrays["chances"],
        counts=arrays["counts"],
        scale=meta["scale"],
    )
    return table, Progress(*meta["progress"])


def unpack_episodes(arrays: Arrays, most: int) -> deque[EpisodeRows]:
    """Return the episodes, oldest first."""
    fields = [_split(arrays[f"episode {name}"], arrays["lengths"]) for name in (*FIELDS, "followed")]
    opened = _split(arrays["episode opened"].reshape(-1, 4), arrays["opened lengths"])
    episodes = deque[EpisodeRows](maxlen=most)
    for steps, rewards, novelty, lost, dead, followed, entries in zip(*fields, opened, strict=True):
        rows = [(a, b, c, d) for a, b, c, d in entries]
        episodes.append(EpisodeRows(steps, rewards, novelty, lost, dead, followed, rows))
    return episodes


def _split(values: NDArray[Any], lengths: NDArray[Any]) -> Iterable[list[Any]]:
    return (part.tolist() for part in np.split(values, np.cumsum(lengths)[:-1])) if len(lengths) else ()


def _pack_json(value: Any) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def _pack_forms(forms: Forms) -> dict[str, Any]:
    arguments = {
        name: {form: sorted(heads) for form, heads in getattr(forms, name).items()} for name in ("first", "second")
    }
    return {"steps": forms.steps, "moved": forms.moved, "offered": forms.offered, **arguments}


def _unpack_forms(packed: dict[str, Any]) -> Forms:
    steps, moved, offered = (Counter[str](packed[name]) for name in ("steps", "moved", "offered"))
    first, second = ({form: set(heads) for form, heads in packed[name].items()} for name in ("first", "second"))
    return Forms(steps, moved, offered, first, second)
