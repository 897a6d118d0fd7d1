"""The source of graduated validity: how far each tool call of the policy got (PROVE)."""

from collections.abc import Mapping, Sequence
from typing import Any

from hardwon.memory import Failure, Step
from hardwon.memory.errors import ConfigError
from hardwon.runtime.environments.calls import parse_call
from hardwon.runtime.interfaces.types import Environment, Tooled
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.algorithms.signals import Signals

from .base import EpisodeSource, SourceParts, list_turns

TEXT, CALL, KNOWN, VALID, RUNS = range(5)
"""The rungs: no call, a call of an unknown tool, of a tool with wrong arguments, one that fails, one that runs."""
Schemas = Mapping[str, Mapping[str, Any]]
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": (list, tuple),
    "object": dict,
}


@PARTS.add("source", "Graduated validity of calls (PROVE)", gives=("calls",), name="calls", method="rungs")
class CallsSource(EpisodeSource):
    """Rung of each tool call, from 0 to 4: text, unknown tool, wrong arguments, a call that fails, one that runs.

    An outage is no fault of a call.
    """

    def __init__(self, parts: SourceParts) -> None:
        super().__init__(parts)
        if not isinstance(parts.environment, Tooled):
            raise ConfigError(
                f"the source calls grades tool calls, and {parts.environment.name} has no tools. Leave it out of "
                "roles.policy.sources, or choose an environment with tools, such as bfcl."
            )
        self._environment: Environment = parts.environment.clone()
        self._schemas: dict[str, Schemas] = {}

    def measure(self, rollout: Rollout) -> Signals:
        """Return the rung of every turn."""
        return Signals({"calls": tuple(self._grade(rollout, turn) for turn in list_turns(rollout))})

    def _grade(self, rollout: Rollout, turn: int) -> float:
        if rollout.group not in self._schemas:
            self._schemas[rollout.group] = self._list_schemas(rollout.group)
        return float(grade_call(rollout.trajectory.steps[turn], self._schemas[rollout.group]))

    def _list_schemas(self, group: str) -> Schemas:
        """Return the schemas of a task instance's tools, which some environments have only after a reset."""
        task, _, seed = group.rpartition("#")
        self._environment.reset(task, int(seed))
        assert isinstance(self._environment, Tooled)
        return dict(self._environment.tool_schemas())


def grade_call(step: Step, schemas: Schemas) -> int:
    """Return the rung that a step's call reached.

    A call that ran is on the highest rung, whatever it is called: tools may come and go within an episode.
    """
    call, failure = parse_call(step.action), step.diagnosis.failure
    if call is None:
        return TEXT
    name, positional, named = call
    if name not in schemas:
        return CALL if failure in (Failure.INVALID_ACTION, Failure.PRECONDITION) else RUNS
    if failure is Failure.INVALID_ACTION or not fits(schemas[name], positional, named):
        return KNOWN
    return VALID if failure is Failure.TOOL_ERROR else RUNS


def fits(schema: Mapping[str, Any], positional: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether arguments have the names and the types of a schema, and none that is required is missing."""
    fields = schema.get("properties", {})
    if len(positional) > len(fields):
        return False
    given = {**dict(zip(fields, positional, strict=False)), **named}
    is_complete = {*schema.get("required", ())} <= {*given}
    return is_complete and all(name in fields and _has_type(fields[name], value) for name, value in given.items())


def _has_type(schema: Mapping[str, Any], value: Any) -> bool:
    """Return whether a value has the type of its schema; a schema without a plain type accepts any value."""
    expected = _TYPES.get(str(schema.get("type")))
    if expected is None or value is None:
        return True
    return isinstance(value, expected) and (isinstance(value, bool) is (expected is bool))
