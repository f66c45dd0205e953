"""Schedules that compute the next run time of a job, from cron syntax, times or intervals.

Pure arithmetic on times. Knows nothing of jobs, stores and agents.
"""

from toolfold.tools.schedules.parsing import MAX_SCHEDULE_CHARS, parse_schedule
from toolfold.tools.schedules.schedule import Schedule, ScheduleError
from toolfold.tools.schedules.zones import find_zone, local_zone_name

__all__ = [
    "MAX_SCHEDULE_CHARS",
    "Schedule",
    "ScheduleError",
    "find_zone",
    "local_zone_name",
    "parse_schedule",
]
