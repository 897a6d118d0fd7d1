"""Samplers of task instances; importing this package registers all of them in `SAMPLERS`."""

from . import curricula as curricula, needless as needless
from .base import SAMPLERS as SAMPLERS, TaskSampler as TaskSampler, open_sampler as open_sampler
from .shuffled import Drawn as Drawn, Task as Task
