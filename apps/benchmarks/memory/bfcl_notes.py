"""Read two collections from the package `bfcl-eval`: BFCL's memory questions, and the calls of its multi-turn tasks.

BFCL v4's memory category has conversations of one user in five scenarios, and questions with a quotation of the turn
that answers them. Its multi-turn tasks have solutions; played in the environment, they give situations and the calls
that follow.
"""

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hardwon.memory.errors import MissingExtra
from hardwon.runtime.environments.bfcl import ANSWER, Bfcl, tasks

from ..retrieval.trajectories import RecordedStep
from .collection import Collection, Note, Query

_SCENARIOS = ("customer", "finance", "healthcare", "notetaker", "student")
_GAP = re.compile(r"\.\.\.|…")
_CLAUSE = re.compile(r"[.:;!?—–]\s|[—–]")
_WORD = re.compile(r"\w+")


def read_questions() -> Collection:
    """Read BFCL's memory questions: a note is a turn, a tenant a scenario.

    Raises:
        MissingExtra: If `bfcl-eval` is not installed.
    """
    data = _find_data()
    notes = [note for scenario in _SCENARIOS for note in _read_turns(data, scenario)]
    answers = {line["id"]: line for line in _read_lines(data / "possible_answer" / "BFCL_v4_memory.json")}
    queries, omitted = [], 0
    for line in _read_lines(data / "BFCL_v4_memory.json"):
        scenario, text = line["scenario"], line["question"][0][0]["content"]
        evidence = _find_evidence(notes, scenario, answers[line["id"]].get("source") or "")
        if evidence:
            queries.append(Query(scenario, text, scenario, frozenset(evidence), group=line["id"]))
        else:
            omitted += 1
    return Collection("BFCL memory", tuple(notes), tuple(queries), omitted)


def _read_turns(data: Path, scenario: str) -> Iterator[Note]:
    """Yield the turns that a scenario's user writes before the questions."""
    for line in _read_lines(data / "memory_prereq_conversation" / f"memory_{scenario}.json"):
        for turn in line["question"]:
            for message in turn:
                yield Note(scenario, line["id"], message["content"].strip())


def _find_evidence(notes: list[Note], scenario: str, source: str) -> set[int]:
    """Return the notes that contain what an answer quotes; a quotation can join several passages by dots.

    A passage that no turn contains as a whole, because the quotation changed its punctuation, is found by its longest
    clause.
    """
    found: set[int] = set()
    for passage in _GAP.split(source):
        longest = max(map(_normalize, _CLAUSE.split(passage)), key=len)
        for words in (_normalize(passage), longest):
            hits = {
                number
                for number, note in enumerate(notes)
                if words and note.tenant == scenario and f" {words} " in f" {_normalize(note.text)} "
            }
            if hits:
                found |= hits
                break
    return found


def _normalize(text: str) -> str:
    """Return the words of a text in lower case, separated by single spaces."""
    return " ".join(_WORD.findall(text.lower().replace("’", "'")))


def read_solutions() -> list[RecordedStep]:
    """Play the solutions of BFCL's 100 multi-turn training tasks, and return their steps.

    Raises:
        MissingExtra: If `bfcl-eval` or `mpmath` is not installed.
    """
    steps = []
    for number, task in enumerate(tasks("base", "train")):
        environment = Bfcl("base")
        state, before = environment.reset("train", number), ""
        calls = [call for turn in task.solution for call in (*turn, f"{ANSWER}()")]
        for t, call in enumerate(calls):
            name = call.partition("(")[0]
            steps.append(
                RecordedStep(
                    number, task.id, t, state.observation, name, call, task.requests[0], before, goal=state.task
                )
            )
            state, before = environment.step(call)[0], call
        environment.close()
    return steps


def _find_data() -> Path:
    """Return the data folder of `bfcl-eval`."""
    spec = find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("the package bfcl-eval is not installed. Run: pip install --no-deps bfcl-eval mpmath")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
