"""What requests and answers look like: the library's own records, and the little that is around them.

The records are the dataclasses of `hardwon.memory.records`, so what the API takes and gives is what the library
has. A field that does not exist, a number that is none and a value that no record may have are refused.
"""

from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal

from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from hardwon.apps.http.access.auth import Caller, Right
from hardwon.memory import (
    Admission,
    Estimate,
    Hit,
    Item,
    Problem as LibraryProblem,
    Recollection,
    Segment,
    State,
    Step,
    Summary,
    Trajectory,
)
from hardwon.memory.bank import Entry
from hardwon.memory.records import Kind, Trust
from hardwon.memory.values.effects import Effect

Count = Annotated[int, Field(ge=0, le=1000)]
Text = Annotated[str, Field(max_length=1_000_000)]
REWARD = 1e9
"""Largest reward of a step, either way."""


class Asked(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RecallAsked(Asked):
    """What is asked of recall: a state or a text, and how much."""

    state: State | None = None
    text: Text | None = None
    task: str | None = None
    k: Annotated[int, Field(ge=0, le=1000, strict=True)] = 5
    kinds: list[Kind] | None = None
    budget_tokens: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] | None = None
    level: Literal["step", "task"] = "step"
    actions: dict[str, str] | None = None
    """Admissible actions, each with what this episode already tried of it."""
    after: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "RecallAsked":
        if (self.state is None) == (self.text is None):
            raise ValueError("give either a state or a text")
        return self


class ActionAsked(Asked):
    """An action in a state."""

    state: State
    action: str


class CheckAsked(ActionAsked):
    """An action to be checked."""

    about_to_run: bool = True
    """Whether it runs if it may: then a refusal is counted, and a guardrail on probation lets it through when due."""
    again: bool = False
    """Whether this action has failed in this run and nothing worked since."""
    refused: int = Field(default=0, ge=0)
    """How often this action was refused in this run already: what a run insists on is let through."""


class KeysAsked(ActionAsked):
    """An action in a state, and what this episode already tried of it."""

    counts: str = ""


class PlanAsked(Asked):
    """A plan in a state."""

    state: State
    actions: list[str]


class OfferedAsked(Asked):
    """A state, and the kinds of items that may act in it."""

    state: State
    kinds: list[Kind] = ["skill", "remedy"]
    masked: bool = False
    """Those that hurt in the world of this state instead, which are otherwise left out."""


class EpisodesTold(Asked):
    """Episodes to record together. One with the id of one that is there is not written again."""

    episodes: list[Trajectory]

    @model_validator(mode="after")
    def _sums_are_numbers(self) -> "EpisodesTold":
        if any(abs(step.reward) > REWARD for episode in self.episodes for step in episode.steps):
            raise ValueError(f"a reward is beyond {REWARD:g}: sums of such are no numbers any more")
        return self


@dataclass(frozen=True, slots=True)
class ToldItem(Item):
    """An item from a program that calls: quarantined unless it says `trust: "trusted"`.

    Its writer is the caller's name, whatever it says.
    """

    source: str = "client"
    trust: Trust = "untrusted"


def item_of(told: Item, caller: Caller) -> Item:
    """Return the item that a caller sent, with the caller as its writer."""
    plain = {field.name: getattr(told, field.name) for field in fields(Item)}
    return Item(**{**plain, "writer": caller.writer})


class FeedbackTold(Asked):
    """Whether an item helped in an episode."""

    helped: Annotated[bool, Field(strict=True)]
    episode: Annotated[str, Field(max_length=200)] = ""
    """The id of a recorded episode; without one, a client may speak of an item once as long as the server runs."""


class ItemsTold(Asked):
    """Items to add together."""

    items: list[ToldItem]


class Operation(Asked):
    """What an extractor asks for: an item added, or items that it was shown rewritten into one."""

    item: ToldItem
    indices: list[int] | None = None
    """The places of the items that are rewritten, in `shown`; none adds the item."""


class Reading(Asked):
    """What came of reading an episode."""

    operations: list[Operation]
    shown: list[str] = []


class Rewriting(Asked):
    """Items, by id, that become one."""

    ids: Annotated[list[str], Field(min_length=1)]
    item: ToldItem


class Why(Asked):
    """A reason, kept in the history."""

    why: Annotated[str, Field(min_length=1, pattern=r"\S")]


class Pinned(Asked):
    """Whether an item is protected."""

    pinned: bool = True


class NamespaceTold(Asked):
    """The name of a namespace."""

    name: Annotated[str, Field(min_length=1, max_length=200)]


class EntryTold(Asked):
    """What a team shares."""

    team: str
    key: str
    value: str


class Pull(Asked):
    """Which entry, and for whom."""

    entry: Annotated[int, Field(ge=0, le=2**62)]
    reader: str


class Promotion(Asked):
    """An item, and the id of the episode that vouches for it."""

    item: ToldItem
    episode: str


class EntryId(BaseModel):
    """The number of an entry."""

    id: int


class Entries(BaseModel):
    """Entries of a bank, without their values."""

    entries: list[Entry]


class Value(BaseModel):
    """The value of an entry."""

    value: str


class Pulls(BaseModel):
    """Every pull, oldest first."""

    pulls: list[Pull]


class About(BaseModel):
    """A namespace as this caller may use it."""

    namespace: str
    episodes: int
    read_only: bool
    """Whether it takes no episodes from this caller."""
    rights: list[Right]
    embedder: str
    fingerprint: str


class Names(BaseModel):
    """Namespaces that this caller may read."""

    namespaces: list[str]


class Ids(BaseModel):
    """Ids, in the order of what was sent."""

    ids: list[str]


class StepIds(BaseModel):
    """Ids of steps."""

    steps: list[int]


class Words(BaseModel):
    """Keys under which a step is filed."""

    keys: list[str]


class Around(BaseModel):
    """What holds around the arguments of an action."""

    context: str


class Items(BaseModel):
    """A page of items."""

    items: list[Item]
    total: int


class Admissions(BaseModel):
    """What became of each item."""

    admissions: list[Admission]


class Effects(BaseModel):
    """What an item does in each world."""

    effects: list[Effect]


class Offered(BaseModel):
    """Items whose condition holds."""

    items: list[Item]


class ItemHit(BaseModel):
    """An item that was found."""

    type: Literal["item"] = "item"
    what: Item
    similarity: float
    why: str


class StepHit(BaseModel):
    """A step that was found."""

    type: Literal["step"] = "step"
    what: Step
    similarity: float
    why: str


class Recalled(BaseModel):
    """What a recall returned. Empty is a valid answer."""

    items: list[ItemHit]
    steps: list[StepHit]
    guardrails: list[Item]
    """Guardrails whose condition holds in the state."""
    estimates: dict[str, Estimate]
    """By admissible action, when actions were given."""
    path: Literal["empty", "cluster", "hybrid", "task"]
    tokens: int
    summaries: list[Summary]
    """What came of every kind of action in this kind of situation, the most tried first."""
    filled: int = 0
    """Of `steps`, how many search found near because the situation itself has fewer than were asked for."""
    masked: list[str] = []
    """Ids of items that fit but hurt in this world, so that they are not among `items`."""


class Hits(BaseModel):
    """What was found, best first; `type` says what each hit is."""

    hits: list[Annotated[ItemHit | StepHit, Field(discriminator="type")]]


def typed(hit: Hit) -> ItemHit | StepHit:
    """Return a hit that says of what type it is; what the library made is not checked again."""
    kind = ItemHit if isinstance(hit.what, Item) else StepHit
    return kind.model_construct(what=hit.what, similarity=hit.similarity, why=hit.why)


def recalled(found: Recollection) -> Response:
    """Return a recollection as JSON."""
    told = Recalled.model_construct(
        items=list(map(typed, found.items)), steps=list(map(typed, found.steps)), guardrails=list(found.guardrails),
        estimates=found.estimates, path=found.path, tokens=found.tokens, summaries=list(found.summaries),
        filled=found.filled, masked=list(found.masked),
    )  # fmt: skip
    return said(Recalled, told)


class Steps(BaseModel):
    """Steps."""

    steps: list[Step]


class Segments(BaseModel):
    """The stretches of an episode."""

    segments: list[Segment]


class Summaries(BaseModel):
    """Sums of attempts."""

    summaries: list[Summary]


class Problems(BaseModel):
    """What is derived and disagrees with the truth."""

    problems: list[LibraryProblem]


class Rows(BaseModel):
    """Plain rows, and how many there are in all."""

    rows: list[dict[str, Any]]
    total: int


class Lines(BaseModel):
    """How many lines were new."""

    lines: int


class Run(BaseModel):
    """A training run or an experiment in the folder of runs."""

    name: str
    kind: Literal["train", "run"]
    lines: int
    changed_at: str


class Runs(BaseModel):
    """Runs, the newest first."""

    runs: list[Run]


class Health(BaseModel):
    """The server answers, and the library can be read."""

    status: Literal["ok"]
    version: str


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def said(kind: Any, value: Any) -> Response:
    """A value as JSON, written at once: checking again what the library made would cost as much as recall does."""
    return Response(_adapter(kind).dump_json(value), media_type="application/json")
