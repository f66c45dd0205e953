"""Where commands run: one contract, one file a place.

`Environment` is what the tools and the command line use; `Backend` is what a place implements. A backend
knows nothing of tasks, limits or processes, an environment nothing of containers and connections.
"""

from toolfold.environments.backend import Backend, Channel, Readiness, Size
from toolfold.environments.environment import TASK, Bounds, Completed, Environment
from toolfold.environments.processes import Notice, Process
from toolfold.environments.running import Running

__all__ = [
    "TASK",
    "Backend",
    "Bounds",
    "Channel",
    "Completed",
    "Environment",
    "Notice",
    "Process",
    "Readiness",
    "Running",
    "Size",
]
