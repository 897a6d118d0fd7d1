"""Read LoCoMo and LongMemEval: conversations over many sessions, and questions with the turns that answer them.

The files are not part of hardwon. You download them into one folder; `FILES` says where from. LoCoMo is licensed for
noncommercial use (CC BY-NC 4.0), LongMemEval under the MIT license.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardwon.memory.errors import ConfigError

from .collection import Collection, Note, Query

_HUB = "https://huggingface.co/datasets/xiaowu0162/longmemeval-cleaned/resolve/main/"
FILES: Mapping[str, tuple[str, str, str]] = {
    "locomo": (
        "locomo10.json",
        "https://raw.githubusercontent.com/snap-research/locomo/main/data/locomo10.json",
        "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4",
    ),
    "longmemeval": (
        "longmemeval_s_cleaned.json",
        _HUB + "longmemeval_s_cleaned.json",
        "d6f21ea9d60a0d56f34a05b609c79c88a451d2ae03597821ea3d5a9678c3a442",
    ),
}
"""By data set: the file's name, its address, and the SHA-256 of the version that published figures refer to."""
_CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_TURN = re.compile(r"D(\d+):(\d+)")
_SESSION = re.compile(r"session_(\d+)")
Record = dict[str, Any]


def find_file(folder: Path, name: str) -> Path | None:
    """Return the file of a data set in a folder, or None if it is missing."""
    path = folder / FILES[name][0]
    return path if path.is_file() else None


def has_known_digest(path: Path, name: str) -> bool:
    """Return whether a file is byte for byte the published version."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == FILES[name][2]


def read_locomo(path: Path) -> Collection:
    """Read LoCoMo: a list of conversations with `conversation.session_N` and `qa`.

    A note is a turn with its speaker's name and, for an image, its caption. Adversarial questions (category 5) have
    evidence, too, and are included.

    Raises:
        ConfigError: If the file does not have LoCoMo's form.
    """
    notes: list[Note] = []
    queries: list[Query] = []
    omitted = 0
    with _explain(path, "a list of conversations with `sample_id`, `conversation` and `qa`"):
        for sample in _load(path):
            tenant = str(sample["sample_id"])
            places: dict[tuple[int, int], int] = {}
            for session, turn in _list_locomo_turns(sample["conversation"]):
                numbers = _parse_turns([turn["dia_id"]])
                places.update(dict.fromkeys(numbers, len(notes)))
                notes.append(Note(tenant, session, _format_locomo_turn(turn)))
            for question in sample["qa"]:
                evidence = {places[turn] for turn in _parse_turns(question.get("evidence") or ()) if turn in places}
                if evidence:
                    kind = _CATEGORIES.get(question["category"], str(question["category"]))
                    queries.append(Query(tenant, question["question"], kind, frozenset(evidence), group=tenant))
                else:
                    omitted += 1
    return _check_collection(Collection("LoCoMo", tuple(notes), tuple(queries), omitted), path)


def _list_locomo_turns(conversation: Record) -> Iterator[tuple[str, Record]]:
    """Yield the turns of all sessions in order, each with the name of its session."""
    names = [name for name in conversation if _SESSION.fullmatch(name)]
    for name in sorted(names, key=lambda name: int(name.removeprefix("session_"))):
        for turn in conversation[name] or ():
            yield name, turn


def _format_locomo_turn(turn: Record) -> str:
    """Return the text of a turn, with its speaker's name and the caption of its image."""
    caption = f" [shares {turn['blip_caption']}]" if turn.get("blip_caption") else ""
    return f"{turn['speaker']}: {turn['text']}{caption}".strip()


def _parse_turns(references: Sequence[str]) -> set[tuple[int, int]]:
    """Return the (session, turn) numbers of references; some hold several turns, such as `D8:6; D9:17`."""
    return {(int(session), int(turn)) for text in references for session, turn in _TURN.findall(str(text))}


def read_longmemeval(path: Path) -> Collection:
    """Read LongMemEval: a list of questions, each with its own history in `haystack_sessions`.

    A note is a turn of the user or of the assistant, and turns with `has_answer` are the evidence. Questions of the
    type abstention, whose ids end in `_abs`, have no place of an answer; they are omitted, as in the data set's own
    evaluation.

    Raises:
        ConfigError: If the file does not have LongMemEval's form.
    """
    notes: list[Note] = []
    queries: list[Query] = []
    omitted = 0
    with _explain(path, "a list of questions with `question_id`, `haystack_session_ids` and `haystack_sessions`"):
        for record in _load(path):
            tenant = str(record["question_id"])
            start, evidence = len(notes), set()
            for session, turns in zip(record["haystack_session_ids"], record["haystack_sessions"], strict=True):
                for turn in turns:
                    if not turn["content"].strip():
                        continue
                    if turn.get("has_answer"):
                        evidence.add(len(notes))
                    notes.append(Note(tenant, str(session), f"{turn['role']}: {turn['content']}".strip()))
            if evidence and not tenant.endswith("_abs"):
                kind = str(record["question_type"])
                queries.append(Query(tenant, record["question"], kind, frozenset(evidence), group=tenant))
            else:
                del notes[start:]
                omitted += 1
    return _check_collection(Collection("LongMemEval-S", tuple(notes), tuple(queries), omitted), path)


READERS = {"locomo": read_locomo, "longmemeval": read_longmemeval}


def _load(path: Path) -> list[Record]:
    """Return the records of a JSON file."""
    records = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(records, list):
        raise TypeError(f"it is {type(records).__name__}")
    return records


@contextmanager
def _explain(path: Path, form: str) -> Iterator[None]:
    """Raise `ConfigError` with the file's name and expected form if its content does not have this form."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigError(
            f"{path.name} is not {form} ({type(error).__name__}: {error}). Download it again from {_address(path)}."
        ) from error


def _address(path: Path) -> str:
    """Return the address of a data set's file."""
    return next(address for name, address, _ in FILES.values() if name == path.name)


def _check_collection(collection: Collection, path: Path) -> Collection:
    """Return the collection; raise `ConfigError` if no question can be asked."""
    if not collection.queries:
        raise ConfigError(f"{path.name} has no question with evidence ({collection.omitted} without); check the file.")
    return collection
