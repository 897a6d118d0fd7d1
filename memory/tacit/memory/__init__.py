"""What the agent knows: experience records, the library that keeps them, and recall.

This portion knows nothing of prompts, models, graphs or torch.
"""

from .errors import TacitError as TacitError
from .library import ExperienceLibrary as ExperienceLibrary
from .records import (
    Admission as Admission,
)
from .records import (
    Diagnosis as Diagnosis,
)
from .records import (
    Estimate as Estimate,
)
from .records import (
    EvolutionReport as EvolutionReport,
)
from .records import (
    Failure as Failure,
)
from .records import (
    Hit as Hit,
)
from .records import (
    Item as Item,
)
from .records import (
    Problem as Problem,
)
from .records import (
    Recollection as Recollection,
)
from .records import (
    State as State,
)
from .records import (
    Step as Step,
)
from .records import (
    Trajectory as Trajectory,
)
from .records import (
    Usage as Usage,
)
from .records import (
    Verdict as Verdict,
)
