"""Sources of signals about the turns of a policy; importing this package registers all of them."""

from . import (
    answers as answers,
    calls as calls,
    heads as heads,
    implicit as implicit,
    judged as judged,
    policy as policy,
    speech as speech,
    world as world,
)
from .base import (
    Source as Source,
    SourceParts as SourceParts,
    Sources as Sources,
    open_source as open_source,
)
