"""Run times of a job: one moment, calendar times, or fixed intervals.

Calendar times are in a time zone. A time that does not exist, because clocks are put forward, is replaced by
the first moment after the gap; of a time that exists twice, the first is used. Intervals in minutes and
hours are elapsed time, so that a change of the clocks does not affect them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from toolfold.core.errors import CallError
from toolfold.core.types import Json

MIN_INTERVAL_S = 60
MAX_INTERVAL_DAYS = 3_660
MAX_EXPRESSIONS = 24
MAX_EXPRESSION_CHARS = 200
_LAST_YEAR = 9_000
_GAP_STEP = timedelta(minutes=1)


class ScheduleError(CallError):
    """A schedule cannot be parsed, or has no future run time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The run times of a job.

    `kind` is `once` (at `moment`), `cron` (at the times of the cron `expressions`), `interval` (every
    `seconds` from `moment` on) or `days` (every `days` days from the date of `moment` on, at `clock`).
    """

    kind: Literal["once", "cron", "interval", "days"]
    moment: float = 0.0
    """Moment of a single run, or first day of a schedule of kind `days`, in seconds since 1970."""
    expressions: tuple[str, ...] = ()
    seconds: int = 0
    days: int = 0
    clock: str = ""
    """Time of the day, as HH:MM."""

    def next_after(self, moment: datetime, zone: ZoneInfo) -> datetime | None:
        """Return the first run time after a moment, in UTC; None if there is none."""
        match self.kind:
            case "once":
                planned = datetime.fromtimestamp(self.moment, UTC)
                return planned if planned > moment else None
            case "interval":
                return self._next_interval(moment)
            case "days":
                return self._next_day(moment, zone)
        return min((each for each in self._next_matches(moment, zone)), default=None)

    def upcoming(self, moment: datetime, zone: ZoneInfo, count: int) -> Iterator[datetime]:
        """Yield the next run times after a moment, at most `count`."""
        following: datetime | None = moment
        for _ in range(count):
            following = self.next_after(following, zone) if following is not None else None
            if following is not None:
                yield following

    def _next_interval(self, moment: datetime) -> datetime:
        passed = moment.timestamp() - self.moment
        number = max(1, math.floor(passed / self.seconds) + 1)
        return datetime.fromtimestamp(self.moment + number * self.seconds, UTC)

    def _next_day(self, moment: datetime, zone: ZoneInfo) -> datetime:
        first = datetime.fromtimestamp(self.moment, zone).date()
        today = moment.astimezone(zone).date()
        number = max(0, (today - first).days // self.days)
        while True:
            planned = at_local_time(first + timedelta(days=number * self.days), self.clock, zone)
            if planned > moment:
                return planned
            number += 1

    def _next_matches(self, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        from cronsim import CronSim

        for expression in self.expressions:
            found = next(CronSim(expression, moment.astimezone(zone)), None)
            while found is not None and found <= moment:  # the first hour of two that have the same name
                found = next(CronSim(expression, found.replace(fold=1)), None)
            if found is not None:
                yield found.astimezone(UTC)

    def to_json(self) -> Json:
        """Return the schedule as JSON data."""
        values = {"moment": self.moment, "seconds": self.seconds, "days": self.days, "clock": self.clock}
        used = {name: value for name, value in values.items() if value}
        expressions = {"expressions": list(self.expressions)} if self.expressions else {}
        return {"kind": self.kind, **used, **expressions}

    @classmethod
    def from_json(cls, data: Json) -> Schedule:
        """Return the schedule from JSON data that `to_json` returned."""
        return cls(**{**data, "expressions": tuple(data.get("expressions", ()))})


def check_expressions(*expressions: str) -> tuple[str, ...]:
    """Return five-field cron expressions unchanged. Raises ScheduleError if one is invalid."""
    from cronsim import CronSim, CronSimError

    if len(expressions) > MAX_EXPRESSIONS:
        raise ScheduleError(f"The schedule names more than {MAX_EXPRESSIONS} different times.")
    for expression in expressions:
        if len(expression) > MAX_EXPRESSION_CHARS or len(expression.split()) != 5:
            raise ScheduleError(
                f"{expression[:80]!r} is not a cron expression of five fields: minute, hour, day of the"
                " month, month, day of the week."
            )
        try:
            found = next(CronSim(expression, datetime.now(UTC)), None)
        except (CronSimError, ValueError, AssertionError) as error:
            raise ScheduleError(
                f"{expression!r} is not a valid cron expression: {str(error) or 'wrong value'}."
            ) from None
        if found is None:
            raise ScheduleError(f"The cron expression {expression!r} matches no date.")
    return expressions


def at_local_time(day: date, clock: str, zone: ZoneInfo) -> datetime:
    """Return the UTC moment of a local date and time of day.

    A time in the gap that a clock change leaves is moved to the end of the gap.
    """
    hour, minute = map(int, clock.split(":"))
    local = datetime.combine(day, time(hour, minute), zone)
    while local.astimezone(UTC).astimezone(zone).replace(fold=0) != local:
        local = (local.replace(tzinfo=None) + _GAP_STEP).replace(tzinfo=zone)
    return local.astimezone(UTC)


def once(moment: datetime) -> Schedule:
    """Return a schedule for a single moment. Raises ScheduleError if it is too far in the future."""
    if moment.year > _LAST_YEAR:
        raise ScheduleError("The time of the schedule is too far in the future.")
    return Schedule(kind="once", moment=moment.timestamp())


def every(amount: timedelta, start: datetime) -> Schedule:
    """Return a schedule with a fixed interval between runs. Raises ScheduleError if it is out of range."""
    seconds = int(amount.total_seconds())
    if not MIN_INTERVAL_S <= seconds <= MAX_INTERVAL_DAYS * 86_400:
        raise ScheduleError(
            f"An interval must be between {MIN_INTERVAL_S} seconds and {MAX_INTERVAL_DAYS:,} days long."
        )
    return Schedule(kind="interval", seconds=seconds, moment=start.timestamp())


def every_days(days: int, clock: str, first: date, zone: ZoneInfo) -> Schedule:
    """Return a schedule that runs every `days` days at the time of day `clock`."""
    if not 1 <= days <= MAX_INTERVAL_DAYS:
        raise ScheduleError(f"An interval must be between 1 and {MAX_INTERVAL_DAYS:,} days long.")
    noon = datetime.combine(first, time(12), zone)
    return Schedule(kind="days", days=days, clock=clock, moment=noon.timestamp())
