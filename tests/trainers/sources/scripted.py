"""Sources of tests: signals by a script in place of a model."""

from hardwon.trainers.algorithms.signals import Signals


class Scripted:
    """Gives turn 2 of copy 0 the value `high`, and that of the other copies `low`."""

    gives = ("progress",)

    def __init__(self, parts, **settings):
        self._settings = settings
        self.read_groups = 0

    async def read(self, groups):
        self.read_groups += len(groups)
        return {one.trajectory.id: self._signal(one) for group in groups for one in group}

    def _signal(self, one):
        value = self._settings["high" if one.trajectory.id.endswith("/000") else "low"]
        number = len({row.turn for row in one.rows})
        return Signals({"progress": tuple(value if t == min(1, number - 1) else 0.0 for t in range(number))})

    def learn(self, groups):
        return {"groups": float(len(groups))}

    def state_dict(self):
        return {"read_groups": self.read_groups}

    def load_state_dict(self, state):
        self.read_groups = state["read_groups"]


class Silent(Scripted):
    """Knows nothing about any turn of two copies in the group, and 0 elsewhere."""

    def _signal(self, one):
        number = len({row.turn for row in one.rows})
        return Signals({"progress": (None,) * number})
