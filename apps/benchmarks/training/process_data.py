"""Read trajectories with a label for every message of the agent, in the format of AgentProcessBench.

A line of the file is one trajectory:

    {"query_index": 0, "sample_index": 0, "question": "...", "final_label": 1,
     "messages": [{"role": "user", ...}, {"role": "assistant", "tool_calls": [...]}, {"role": "tool", ...}, ...],
     "step_labels": {"1": 1, "3": -1}}

A label belongs to the message with this index: 1 for a step that helped, 0 for one that did neither, -1 for an error.
A tool call becomes an action and the tool's answer the state after it, as in every import of messages. A message
without a call is an action in its own words. `final_label` is the success. Other fields are ignored.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hardwon.apps.importers.messages import Message, plain_messages
from hardwon.memory import Diagnosis, ExperienceLibrary, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.runtime.environments.calls import Call, clip
from hardwon.runtime.integrations.tool_episode import SHOWN_CHARS, ToolEpisode, iter_calls
from hardwon.runtime.interfaces.diagnosis import diagnose
from hardwon.runtime.interfaces.types import Info

FORM = (
    "Each line of the file is an object with query_index, sample_index, question, messages, step_labels and "
    "final_label, such as a line of data/AgentProcessBench/hotpotqa.jsonl of RUCBM/AgentProcessBench."
)
LABELS = (-1, 0, 1)
_NO_CALL = re.compile(r"\bno\b[^.]*\b(?:tool|function) calls?\b", re.IGNORECASE)
"""Pattern of the answer that an agent loop gives to a message in which it found no call."""
_FIELDS: dict[str, type] = {
    "query_index": int,
    "sample_index": int,
    "question": str,
    "messages": list,
    "step_labels": dict,
    "final_label": int,
}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LabeledEpisode:
    """One trajectory with the labels of its messages, in their order."""

    question: int
    sample: int
    trajectory: Trajectory
    steps: tuple[tuple[int, ...], ...]
    """The numbers of the steps of every labeled message: one for each call, or one for its words."""
    labels: tuple[int, ...]
    before_outcome: Diagnosis
    """The diagnosis of the last step if its outcome were not known."""

    @property
    def is_success(self) -> bool:
        """Return whether the final answer is labeled as right."""
        return bool(self.trajectory.success)


def read_episodes(path: Path) -> list[LabeledEpisode]:
    """Read the trajectories of a file, in the order of their questions and samples.

    Args:
        path: The JSON Lines file.

    Raises:
        ConfigError: The file does not exist or is empty, or a line is malformed; the message names the line.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; download the data first, see docs/benchmarks.md. {FORM}")
    episodes: dict[tuple[int, int], LabeledEpisode] = {}
    with ExperienceLibrary.open(":memory:") as library:
        for place, line in _read_lines(path):
            episode = _read_episode(place, line, library)
            which = episode.question, episode.sample
            if which in episodes:
                raise ConfigError(
                    f"{place}: query_index {which[0]} and sample_index {which[1]} were on an earlier line; remove one."
                )
            episodes[which] = episode
    if not episodes:
        raise ConfigError(f"{path.name} has no lines; download it again. {FORM}")
    return [episodes[which] for which in sorted(episodes)]


def _read_lines(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the objects of the file with their places."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = path.read_bytes().count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path.name} line {line} is not UTF-8: {error}. Download the file again.") from error
    # Only a newline ends a line: texts of web pages have other characters that `splitlines` would split at.
    for number, part in enumerate(text.split("\n"), 1):
        if not part.strip():
            continue
        place = f"{path.name} line {number}"
        try:
            value = json.loads(part)
        except ValueError as error:
            raise ConfigError(f"{place} is not JSON: {error}. Download the file again, or remove the line.") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{place} is not a JSON object. {FORM}")
        yield place, value


def _read_episode(place: str, line: Row, library: ExperienceLibrary) -> LabeledEpisode:
    """Return the trajectory of a line, with the labels of its messages."""
    for name, kind in _FIELDS.items():
        # bool is a subclass of int, but no index or label
        if not isinstance(line.get(name), kind) or isinstance(line.get(name), bool):
            raise ConfigError(f"{place}: {name!r} is {line.get(name)!r:.60}. {FORM}")
    if line["final_label"] not in (1, -1):
        raise ConfigError(f"{place}: 'final_label' is {line['final_label']}; write 1 or -1.")
    labels = _read_labels(place, line)
    messages = _read_messages(place, line["messages"])
    episode = ToolEpisode(library, line["question"])
    calls: list[Call] = []
    steps: list[tuple[int, ...]] = []
    for index, turn in _split_turns(line["messages"], messages):
        first = len(calls)
        for call, is_invalid in turn:
            before = episode.state(calls)
            calls.append(call)
            episode.add_answer(before, calls, invalid=is_invalid)
        if index in labels:
            steps.append(tuple(range(first, len(calls))))
    last = episode.steps[-1].diagnosis
    name = f"{line['query_index']}.{line['sample_index']}"
    closed = _close(episode, line["final_label"] == 1, name)
    return LabeledEpisode(
        line["query_index"], line["sample_index"], closed, tuple(steps), tuple(labels[n] for n in sorted(labels)), last
    )


def _read_labels(place: str, line: Row) -> dict[int, int]:
    """Return the labels by the index of their message, each of which must be one of the agent."""
    labels: dict[int, int] = {}
    for key, label in line["step_labels"].items():
        index = int(key) if key.isdecimal() else -1
        message = line["messages"][index] if 0 <= index < len(line["messages"]) else None
        if not isinstance(message, dict) or message.get("role") != "assistant":
            raise ConfigError(
                f"{place}: 'step_labels' labels message {key!r}, which is not one of the assistant. {FORM}"
            )
        if label not in LABELS or isinstance(label, bool):
            raise ConfigError(f"{place}: the label of message {key} is {label!r}; write 1, 0 or -1.")
        labels[index] = label
    if not labels:
        raise ConfigError(f"{place}: 'step_labels' is empty; remove the line, or label a message of the assistant.")
    return labels


def _read_messages(place: str, messages: Sequence[Any]) -> list[list[Message]]:
    """Return each message in the plain form of the importers; one with several tool results becomes several."""
    plain = []
    for index, message in enumerate(messages):
        try:
            plain.append(list(plain_messages(message)))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ConfigError(f"{place}: message {index} cannot be read: {error}. {FORM}") from error
    return plain


Turn = list[tuple[Call, bool]]
"""The calls of one message of the agent, each with whether the environment refused it as no action at all."""


def _split_turns(raw: Sequence[Row], messages: Sequence[list[Message]]) -> Iterator[tuple[int, Turn]]:
    """Yield the index and the calls of every message of the agent."""
    indexes = [index for index, message in enumerate(raw) if message.get("role") == "assistant"]
    for index, end in zip(indexes, [*indexes[1:], len(raw)], strict=True):
        own = messages[index]
        following = [message for batch in messages[index + 1 : end] for message in batch]
        made = [call for message in own for call in message["calls"]]
        if made:
            # A call without an answer, such as one at the limit of steps, still is an action.
            answered = list(iter_calls([*own, *following]))
            yield index, [(call, False) for call in answered or (Call(c["name"], c["arguments"], "") for c in made)]
        else:
            yield index, [_read_words("\n".join(message["text"] for message in own), following)]


def _read_words(text: str, following: Sequence[Message]) -> tuple[Call, bool]:
    """Return the words of a message as an action, and whether the loop refused them."""
    answer = clip("\n".join(message["text"] for message in following), SHOWN_CHARS)
    is_refused = _NO_CALL.match(answer) is not None
    words = clip(text, SHOWN_CHARS) or "(nothing)"
    return Call("answer", {}, answer, answer if is_refused else "", words), is_refused


def _close(episode: ToolEpisode, is_success: bool, name: str) -> Trajectory:
    """Return the trajectory, whose last step is diagnosed as in a live episode that ends with its outcome."""
    trajectory = episode.trajectory(is_success, id=name, ending="success" if is_success else "task_lost")
    *earlier, last = trajectory.steps
    info = Info(success=True) if is_success else Info(lost=True)
    diagnosis = diagnose(last.pre, last.action, last.post, last.reward, info, earlier, episode.working)
    return replace(trajectory, steps=(*earlier, replace(last, diagnosis=diagnosis)))
