"""Parse schedules: cron syntax, ISO 8601 times, and intervals.

30 8 * * 1-5 · @daily · 2026-12-24T18:00 · in 20 minutes · every 2 hours · every 3 days at 09:00
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from toolfold.tools.schedules.schedule import (
    Schedule,
    ScheduleError,
    at_local_time,
    check_expressions,
    every,
    every_days,
    once,
)

MAX_SCHEDULE_CHARS = 200
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_CRON_MINUTES = re.compile(r"[\d*/,\-]+")
_ISO_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[t ]\d{2}:\d{2}(:\d{2})?(z|[+-]\d{2}:?\d{2})?")
_INTERVAL = re.compile(
    r"(?P<word>every|in) (?:(?P<amount>\d{1,6}) )?(?P<unit>minute|hour|day)s?"
    r"(?: at (?P<clock>\d{1,2}:\d{2}))?"
)


def parse_schedule(text: str, now: datetime, zone: ZoneInfo) -> Schedule:
    """Return the schedule that a text describes. Raises ScheduleError.

    `now` is the moment from which relative times count; times without an offset are in `zone`.
    """
    if len(text) > MAX_SCHEDULE_CHARS:
        raise ScheduleError(f"The schedule has {len(text):,} characters; the limit is {MAX_SCHEDULE_CHARS}.")
    words = " ".join(text.casefold().split())
    fields = words.split()
    if words in _MACROS:
        return Schedule(kind="cron", expressions=check_expressions(_MACROS[words]))
    if len(fields) in (5, 6) and _CRON_MINUTES.fullmatch(fields[0]):
        return Schedule(kind="cron", expressions=check_expressions(text.strip()))
    if _ISO_TIME.fullmatch(words):
        schedule = _parse_time(words, zone)
    elif found := _INTERVAL.fullmatch(words):
        schedule = _parse_interval(found, text, now, zone)
    else:
        raise _not_understood(text)
    if schedule.next_after(now, zone) is None:
        raise ScheduleError(f"{text.strip()!r} has passed already.")
    return schedule


def _parse_time(words: str, zone: ZoneInfo) -> Schedule:
    try:
        moment = datetime.fromisoformat(words.upper())
    except ValueError as error:
        raise ScheduleError(f"{words!r} is not a time: {error}.") from None
    if moment.tzinfo is None:
        return once(at_local_time(moment.date(), f"{moment:%H:%M}", zone))
    return once(moment.astimezone(UTC))


def _parse_interval(found: re.Match[str], text: str, now: datetime, zone: ZoneInfo) -> Schedule:
    amount, unit, clock = int(found["amount"] or 1), found["unit"], found["clock"]
    is_once = found["word"] == "in"
    if clock and (is_once or unit != "day"):
        raise _not_understood(text)
    hour, _, minute = (clock or "0:00").partition(":")
    if int(hour) > 23 or int(minute) > 59:
        raise ScheduleError(f"{clock!r} is not a time of the day, from 00:00 to 23:59.")
    if unit == "day" and not is_once:
        local = now.astimezone(zone)
        clock = clock or f"{local:%H:%M}"
        first = local.date()
        if at_local_time(first, clock, zone) <= now:
            first += timedelta(days=1 if found["clock"] else amount)
        return every_days(amount, clock, first, zone)
    length = timedelta(**{f"{unit}s": amount})
    return once(now.astimezone(UTC) + length) if is_once else every(length, now)


def _not_understood(text: str) -> ScheduleError:
    return ScheduleError(
        f"The schedule {text.strip()[:80]!r} was not understood. Write a cron expression such as"
        ' "30 8 * * 1-5", a time such as "2026-12-24T18:00", or an interval such as "every 2 hours",'
        ' "every 3 days at 09:00" or "in 20 minutes".'
    )
