"""Request and response models: the library's own records, and small wrappers around them.

The records are the dataclasses of `hardwon.memory.records`, so the API accepts and returns the library's own data.
Unknown fields, invalid numbers and values that no record may have are rejected; null is as good as no field.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from typing import Annotated, Any, Literal, Self, TypeVar

from fastapi.responses import Response
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    TypeAdapter,
    model_validator,
)
from pydantic_core import CoreSchema

from hardwon.apps.http.access.auth import Caller, Right
from hardwon.memory import (
    Admission,
    Estimate,
    Grade,
    Hit,
    Item,
    Outcome,
    Problem as LibraryProblem,
    Recollection,
    State,
    Step,
    Summary,
    Trajectory,
    Verdict,
)
from hardwon.memory.bank import Entry
from hardwon.memory.records import Kind, Trust
from hardwon.memory.retrieval.request import LONGEST_SERVED, MOST_VISITS, list_texts, list_trail, measure
from hardwon.memory.situations.episode_map import Trail
from hardwon.memory.upkeep.damage import readable
from hardwon.memory.values.effects import Effect

A = TypeVar("A", dict[str, str], list[str])
Count = Annotated[int, Field(ge=0, le=1000)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(max_length=LONGEST_SERVED)]
REWARD = 1e9
"""Largest absolute reward of a step."""


class Asked(BaseModel):
    """Base of request bodies."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        """Use the default of a field that is null: generated clients send every field."""
        if not isinstance(given, dict):
            return given
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in given.items() if value is not None or name not in optional}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe that a field with a default may be null."""
        schema = handler(core)
        described = handler.resolve_ref_schema(schema)
        for name, field in described["properties"].items():
            if name not in described.get("required", ()) and {"type": "null"} not in field.get("anyOf", ()):
                about = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
                described["properties"][name] = {"anyOf": [field, {"type": "null"}], **about}
        return schema


class Told(Asked):
    """Base of request bodies with records, whose numbers and conditions are those of JSON."""

    @model_validator(mode="wrap")
    @classmethod
    def _check_types(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        parsed = handler(given)
        _check_same_types(given, parsed, "")
        return parsed


def _check_same_types(given: Any, parsed: Any, place: str) -> None:
    """Check that no text was read as a number, and no number as a condition or the other way round."""
    if isinstance(given, dict):
        for name, value in given.items():
            read = parsed.get(name) if isinstance(parsed, Mapping) else getattr(parsed, name, None)
            _check_same_types(value, read, f"{place}.{name}".lstrip("."))
    elif isinstance(given, list) and isinstance(parsed, list | tuple):
        for number, (value, read) in enumerate(zip(given, parsed, strict=True)):
            _check_same_types(value, read, f"{place}.{number}")
    elif isinstance(parsed, int | float) and (
        isinstance(given, str) or isinstance(given, bool) != isinstance(parsed, bool)
    ):
        wanted = "true or false" if isinstance(parsed, bool) else "a number"
        raise ValueError(f"{place} is {given!r:.60}; give {wanted}")


def _check_length(state: State) -> State:
    """Return a state of a query whose texts are not too long."""
    _check_sum("state", list_texts(state))
    return state


def _check_trail(trail: Trail) -> Trail:
    """Return the map of an episode whose texts are not too long altogether, and whose places are not too many."""
    if len(trail.visits) > MOST_VISITS:
        raise ValueError(f"the trail has {len(trail.visits):,} visits; at most {MOST_VISITS:,}. Leave out the oldest")
    _check_sum("trail", list_trail(trail))
    return trail


def _check_actions(actions: A) -> A:
    """Return the actions of a query that are not too long altogether."""
    _check_sum("list of actions", chain(actions, actions.values() if isinstance(actions, dict) else ()))
    return actions


def _check_sum(what: str, texts: Iterable[str]) -> None:
    length = measure(texts)
    if length > LONGEST_SERVED:
        raise ValueError(f"the {what} has {length:,} characters; a query has at most {LONGEST_SERVED:,}. Shorten it")


QueryState = Annotated[State, AfterValidator(_check_length)]
"""A state of which something is asked, and which is not stored."""
QueryActions = Annotated[list[str], AfterValidator(_check_actions)]
"""Actions of which something is asked."""


class RecallAsked(Asked):
    """A query for past experience: a state or a text, with filters and limits."""

    state: QueryState | None = None
    text: Text | None = None
    task: Text | None = None
    k: Annotated[int, Field(ge=0, le=1000, strict=True)] = 5
    kinds: list[Kind] | None = None
    budget_tokens: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] | None = None
    level: Literal["step", "task"] = "step"
    actions: Annotated[dict[str, str], AfterValidator(_check_actions)] | None = None
    """Admissible actions, each with the attempts of this episode so far."""
    after: Text | None = None
    raw: Flag = False
    """Return steps and items word for word, with the values of other requests; needs the right `log`."""

    @model_validator(mode="after")
    def _check_query(self) -> "RecallAsked":
        if (self.state is None) == (self.text is None):
            raise ValueError("give either a state or a text")
        return self


class ActionAsked(Asked):
    """An action in a state."""

    state: QueryState
    action: Text


class CheckAsked(ActionAsked):
    """An action to check against the guardrails."""

    about_to_run: Flag = True
    """Whether the action runs if it is allowed. Only then is a refusal counted, and probation may allow the action."""
    again: Flag = False
    """Whether this action has failed in this run and no action has succeeded since."""
    refused: Annotated[int, Field(ge=0, strict=True)] = 0
    """How often this run was refused this action. An action that a run insists on is finally allowed."""


class KeysAsked(ActionAsked):
    """An action in a state, with the attempts of this episode so far."""

    counts: str = ""


class PlanAsked(Asked):
    """A plan in a state."""

    state: QueryState
    actions: QueryActions


class LookaheadAsked(Asked):
    """A state with its admissible actions, and the map of the episode so far."""

    state: QueryState
    actions: QueryActions
    trail: Annotated[Trail, AfterValidator(_check_trail)] = Trail()
    raw: Flag = False
    """Whether to imagine actions at other locations in forms of recorded actions; needs the right `log`."""


class OfferedAsked(Asked):
    """A state, and the kinds of items that may act in it."""

    state: QueryState
    kinds: list[Kind] = ["skill", "remedy"]
    masked: Flag = False
    """Return instead the items that hurt in the world of this state, which are otherwise left out."""
    raw: Flag = False
    """Return items word for word; needs the right `log`."""


class EpisodesTold(Told):
    """Episodes to record together. An episode whose id already exists is not written again."""

    episodes: list[Trajectory]

    @model_validator(mode="after")
    def _sums_are_numbers(self) -> "EpisodesTold":
        if any(abs(step.reward) > REWARD for episode in self.episodes for step in episode.steps):
            raise ValueError(f"a reward is beyond {REWARD:g}, the largest that can be summed safely")
        return self


@dataclass(frozen=True, slots=True)
class ToldItem(Item):
    """An item from a client. It is quarantined unless it sets `trust: "trusted"`.

    The server replaces its writer with the name of the caller.
    """

    source: str = "client"
    trust: Trust = "untrusted"


def item_of(item: Item, caller: Caller) -> Item:
    """Convert an item that a caller sent, with the caller as its writer."""
    plain = {field.name: getattr(item, field.name) for field in fields(Item)}
    return Item(**{**plain, "writer": caller.writer})


class FeedbackTold(Asked):
    """Whether an item helped in an episode."""

    helped: Annotated[bool, Field(strict=True)]
    episode: Annotated[str, Field(max_length=200)] = ""
    """Id of a recorded episode. Without it, a client may rate an item once while the server runs."""


class GradeTold(Asked):
    """A grade, a correction or an explanation of a recorded episode."""

    success: Annotated[bool | None, Field(strict=True)] = None
    """Whether the episode succeeded; null keeps its outcome."""
    score: Annotated[float | None, Field(ge=0, le=1)] = None
    unknown: Flag = False
    """Whether its outcome is unknown, which excludes it from learning."""
    why: Annotated[str, Field(max_length=4000)] = ""
    lesson: Annotated[str, Field(max_length=4000)] = ""
    """What to learn from it, in words."""
    instead: Annotated[str, Field(max_length=4000)] = ""
    """The action that should have been taken."""
    step: Annotated[int | None, Field(ge=0, le=2**31)] = None
    """Number of the step at which it should have been taken."""
    grader: Annotated[str, Field(max_length=200)] = ""
    """Who graded the episode, for the history. The name of the token stands before it."""


class Grades(BaseModel):
    """The grades of an episode, oldest first."""

    grades: list[Grade]


class ItemsTold(Told):
    """Items to add together."""

    items: list[ToldItem]


class OperationAsked(Told):
    """An operation that an extractor proposes: add an item, or rewrite shown items into one."""

    item: ToldItem
    indices: list[int] | None = None
    """Indices in `shown` of the items to rewrite; without them, the item is added."""


class ReadingAsked(Asked):
    """The operations that an extractor proposes after reading an episode."""

    operations: list[OperationAsked]
    shown: list[str] = []


class Rewriting(Told):
    """Ids of items to rewrite into one, and that item."""

    ids: Annotated[list[str], Field(min_length=1)]
    item: ToldItem


class ReasonAsked(Asked):
    """A reason, which is kept in the history."""

    why: Annotated[str, Field(min_length=1, pattern=r"\S")]


class Pinned(Asked):
    """Whether an item is protected."""

    pinned: Flag = True


class NamespaceTold(Asked):
    """The name of a namespace."""

    name: Annotated[str, Field(min_length=1, max_length=200)]


class EntryTold(Asked):
    """An entry that a team shares."""

    team: str
    key: str
    value: str


class Pull(Asked):
    """The id of an entry, and the team that reads it."""

    entry: Annotated[int, Field(ge=0, le=2**62, strict=True)]
    reader: str


class Promotion(Told):
    """An item, and the id of the successful episode that supports it."""

    item: ToldItem
    episode: str


class EntryId(BaseModel):
    """The id of an entry, or null if the server's admission held it back."""

    id: int | None


class Entries(BaseModel):
    """Entries of a bank, without their values."""

    entries: list[Entry]


class EntryValue(BaseModel):
    """The value of an entry."""

    value: str


class Pulls(BaseModel):
    """Pulls, oldest first."""

    pulls: list[Pull]


class About(BaseModel):
    """A namespace, as this caller may use it."""

    namespace: str
    episodes: int
    edition: int
    """A number that changes when recorded episodes are graded or forgotten."""
    read_only: bool
    """Whether this caller may record no episodes."""
    rights: list[Right]
    embedder: str
    fingerprint: str


class NamespaceList(BaseModel):
    """Namespaces that this caller may read or record to."""

    namespaces: list[str]


class IdList(BaseModel):
    """Ids, in the order of the request."""

    ids: list[str]


class StepIds(BaseModel):
    """Ids of steps."""

    steps: list[int]


class KeyList(BaseModel):
    """Keys under which a step is indexed."""

    keys: list[str]


class Around(BaseModel):
    """The context of an action's arguments."""

    context: str


class Items(BaseModel):
    """A page of items."""

    items: list[Item]
    total: int


class Admissions(BaseModel):
    """The result of each proposed item."""

    admissions: list[Admission]


class ItemEffects(BaseModel):
    """The effect of an item in each world."""

    effects: list[Effect]


class Offered(BaseModel):
    """Items whose condition holds."""

    items: list[Item]


@dataclass(frozen=True, slots=True)
class ActionVerdict(Verdict):
    """Whether an action may run here, and why not, in general words."""

    warned: bool = False
    """The action may run although guardrails forbid it, or a lesson says what it needs first."""
    blocked: bool = False
    """The action must not run."""


class ItemHit(BaseModel):
    """An item that matches the query."""

    type: Literal["item"] = "item"
    what: Item
    similarity: float
    why: str


class StepHit(BaseModel):
    """A step that matches the query."""

    type: Literal["step"] = "step"
    what: Step
    similarity: float
    why: str


class Recalled(BaseModel):
    """The result of a recall. Empty is a valid result.

    Without `raw`, values of other requests are replaced by holes, and recorded steps that did the same are one step
    with their mean return and no states, whose `why.like` has their ids.
    """

    lines: list[str] = []
    """The result as text for a prompt, one line per item or group of steps; empty with `raw`."""
    items: list[ItemHit]
    steps: list[StepHit]
    guardrails: list[Item]
    """Guardrails whose condition holds in the state."""
    estimates: dict[str, Estimate]
    """Expected return by admissible action, if actions were given."""
    path: Literal["empty", "cluster", "hybrid", "task"]
    tokens: int
    summaries: list[Summary]
    """Results of every kind of action in this kind of situation, most tried first."""
    filled: int = 0
    """Number of `steps` that search added from similar situations, because this one has too few."""
    masked: list[str] = []
    """Ids of items that match but hurt in this world, so they are not in `items`."""
    outcomes: dict[str, Outcome] = {}
    """Earlier rewards and punishments of each admissible action, and of a few others that are about things that the
    state names; those may need something else first."""


class Hits(BaseModel):
    """Hits, best first. `type` is the type of each."""

    hits: list[Annotated[ItemHit | StepHit, Field(discriminator="type")]]


def typed(hit: Hit) -> ItemHit | StepHit:
    """Convert a hit to its response model, without validation: the library's own data is valid."""
    kind = ItemHit if isinstance(hit.what, Item) else StepHit
    return kind.model_construct(what=hit.what, similarity=hit.similarity, why=hit.why)


def recalled(recollection: Recollection, lines: Sequence[str] = ()) -> Response:
    """Return a recollection as JSON."""
    answer = Recalled.model_construct(
        lines=list(lines), items=list(map(typed, recollection.items)), steps=list(map(typed, recollection.steps)),
        guardrails=list(recollection.guardrails), estimates=recollection.estimates,
        path=recollection.path, tokens=recollection.tokens,
        summaries=list(recollection.summaries), filled=recollection.filled, masked=list(recollection.masked),
        outcomes=dict(recollection.outcomes),
    )  # fmt: skip
    return to_response(Recalled, answer)


def checked(verdict: Verdict) -> Response:
    """Return a verdict as JSON."""
    fields_of_verdict = {field.name: getattr(verdict, field.name) for field in fields(Verdict)}
    warned = verdict.allowed and bool(verdict.items or verdict.item_id)
    return to_response(ActionVerdict, ActionVerdict(**fields_of_verdict, warned=warned, blocked=not verdict.allowed))


class StepList(BaseModel):
    """Steps."""

    steps: list[Step]


class Summaries(BaseModel):
    """Sums of attempts."""

    summaries: list[Summary]


class Problems(BaseModel):
    """Derived structures that disagree with the episode store."""

    problems: list[LibraryProblem]


class RowList(BaseModel):
    """Plain rows, and the total number of them."""

    rows: list[dict[str, Any]]
    total: int


class Lines(BaseModel):
    """The number of lines that were new."""

    lines: int


class RunEntry(BaseModel):
    """A training run or an experiment in the folder of runs."""

    name: str
    kind: Literal["train", "run"]
    lines: int
    changed_at: str


class Runs(BaseModel):
    """Runs, newest first."""

    runs: list[RunEntry]


class Health(BaseModel):
    """The state of the server. It answers only if the library can be read."""

    status: Literal["ok"]
    version: str


# Pydantic compiles a schema for every adapter, which takes much longer than a response.
@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_response(kind: Any, value: Any) -> Response:
    """Return a value as JSON. It is not validated again: that would take as long as a recall."""
    with readable("LIBRARY"):
        return Response(_adapter(kind).dump_json(value), media_type="application/json")
