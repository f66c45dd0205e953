"""Run commands on this machine, in containers, in cloud sandboxes or over ssh, through one interface.

`Environment` is the interface that tools and the command line use. A `Backend` implements one kind of target
(the machine, container or sandbox that commands run on). Backends know nothing of tasks, limits or background
processes; environments know nothing of containers and connections.
"""

from toolfold.tools.environments.backend import Backend, Channel, Readiness, TerminalSize
from toolfold.tools.environments.environment import (
    DEFAULT_TASK,
    CommandResult,
    Environment,
    EnvironmentLimits,
)
from toolfold.tools.environments.process_list import BackgroundProcess, ProcessNotice
from toolfold.tools.environments.running_command import RunningCommand

__all__ = [
    "DEFAULT_TASK",
    "Backend",
    "BackgroundProcess",
    "Channel",
    "CommandResult",
    "Environment",
    "EnvironmentLimits",
    "ProcessNotice",
    "Readiness",
    "RunningCommand",
    "TerminalSize",
]
