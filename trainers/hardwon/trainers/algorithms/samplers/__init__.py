"""Samplers of task instances."""

from .base import TaskSampler as TaskSampler, open_sampler as open_sampler
from .shuffled import Drawn as Drawn, Task as Task
