"""Parse schedules in plain English or cron syntax.

    in 20 minutes · tomorrow at 9 · on Friday at noon · 2026-12-24 at 18:00
    every 2 hours · every weekday at 8:30 · every Monday and Thursday at 7am · every 2 weeks on Monday at 9
    on the first of each month at noon · on the last Friday of every month at 17:00 · every year on May 1 at 8
    30 8 * * 1-5 · @daily

A text is read completely or rejected: no word is skipped, because a guess would run at the wrong time.
"""

from __future__ import annotations

import calendar
import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar
from zoneinfo import ZoneInfo

from toolfold.schedules.schedule import (
    Schedule,
    ScheduleError,
    at_local_time,
    check_expressions,
    every,
    every_days,
    once,
)

Value = TypeVar("Value")

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
_DAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june", "july", "august"),
    *("september", "october", "november", "december"),
)
_DAYS = {
    spelling: number
    for number, name in enumerate(_DAY_NAMES)
    for spelling in (name, f"{name}s", name[:3], *({"tues", "thur", "thurs"} & {name[:4], name[:5]}))
}
_MONTHS = {
    spelling: number for number, name in enumerate(_MONTH_NAMES, 1) for spelling in (name, name[:3])
} | {"sept": 9}
_ORDINALS = {
    name: number
    for number, names in enumerate(
        (("first", "1st"), ("second", "2nd"), ("third", "3rd"), ("fourth", "4th"), ("fifth", "5th")), 1
    )
    for name in names
}
_NUMBERS = {
    name: number
    for number, name in enumerate(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 1
    )
} | {"a": 1, "an": 1, "other": 2}
_UNITS = {
    "minute": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_PERIODS = {"daily": "day", "hourly": "hour", "weekly": "week", "monthly": "month", "yearly": "year"}
_TOKEN = re.compile(
    r"\d{4}-\d{2}-\d{2}|\d{1,2}:\d{2}(?::00)?|\d+(?:st|nd|rd|th)|\d+|[a-z]+(?:'s|'clock)?", re.ASCII
)
_SEPARATORS = re.compile(r"[\s,]+|t(?=\d\d:\d\d)")
_PLURAL_DAYS = frozenset({"weekdays", "weekends", *(f"{name}s" for name in _DAY_NAMES)})
_WEEKDAYS = (0, 1, 2, 3, 4)
_WEEKEND = (5, 6)
_EXAMPLES = (
    '"every weekday at 8:30", "in 20 minutes", "tomorrow at 9", "on the first of each month at noon",'
    ' or a cron expression such as "30 8 * * 1-5"'
)


def parse_schedule(text: str, now: datetime, zone: ZoneInfo) -> Schedule:
    """Return the schedule that a text describes, in plain English or cron syntax. Raises ScheduleError.

    `now` is the moment from which relative times count; local times are in `zone`.
    """
    if len(text) > MAX_SCHEDULE_CHARS:
        raise ScheduleError(f"The schedule has {len(text):,} characters; the limit is {MAX_SCHEDULE_CHARS}.")
    words = text.strip().casefold()
    if words in _MACROS:
        return Schedule(kind="cron", expressions=check_expressions(_MACROS[words]))
    if _looks_like_cron(words):
        return Schedule(kind="cron", expressions=check_expressions(text.strip()))
    schedule = _Reader(_split_words(text), text, now.astimezone(zone), zone).read()
    if schedule.next_after(now, zone) is None:
        raise ScheduleError(f"{text.strip()!r} has passed already.")
    return schedule


def _looks_like_cron(words: str) -> bool:
    fields = words.split()
    return len(fields) in (5, 6) and bool(re.fullmatch(r"[\d*/,\-]+", fields[0]))


def _split_words(text: str) -> list[str]:
    """Split a schedule into words and numbers. Raises ScheduleError at a character that is neither."""
    rest, tokens = text.strip().casefold().rstrip("."), []
    while rest:
        found = _TOKEN.match(rest)
        if found is None:
            raise _not_understood(text)
        tokens.append(found.group())
        rest = rest[found.end() :]
        if separator := _SEPARATORS.match(rest):
            rest = rest[separator.end() :]
    return tokens


def _not_understood(text: str) -> ScheduleError:
    return ScheduleError(f"The schedule {text.strip()[:80]!r} was not understood. Write {_EXAMPLES}.")


def _require_one(values: Sequence[Value], text: str) -> Sequence[Value]:
    if len(values) != 1:
        raise _not_understood(text)
    return values


@dataclass(slots=True)
class _Reader:
    """Parser that reads the words of a schedule from left to right."""

    words: list[str]
    text: str
    now: datetime
    zone: ZoneInfo
    position: int = 0

    def read(self) -> Schedule:
        clocks = self._read_clocks() if self._peek() == "at" else []
        schedule = self._read_days(clocks)
        if self.position < len(self.words):
            raise _not_understood(self.text)
        return schedule

    def _read_days(self, clocks: list[str]) -> Schedule:
        """Parse the days of a schedule and, if `clocks` is empty, the time of day that follows them."""
        first = self._peek()
        if first == "in":
            return once(self._add(self._read_duration()))
        if first in ("every", "each") or first in _PERIODS:
            return self._read_repeated(clocks)
        self._skip("on")
        if self._peek() == "the" or self._peek() in _ORDINALS or self._ordinal(self._peek()):
            return self._read_monthly(clocks)
        if self._peek() in _PLURAL_DAYS:
            return self._weekly(self._read_weekdays(), self._finish_clocks(clocks))
        day = self._read_date()
        if day is None and not clocks:
            raise _not_understood(self.text)
        (clock,) = _require_one(self._finish_clocks(clocks), self.text)
        return once(self._choose_moment(day, clock))

    def _add(self, length: timedelta) -> datetime:
        """Return the moment a given duration from now, unaffected by daylight saving time."""
        try:
            return self.now.astimezone(UTC) + length
        except OverflowError:
            raise ScheduleError("The time of the schedule is too far in the future.") from None

    def _choose_moment(self, day: date | None, clock: str) -> datetime:
        """Return the moment of a date and time of day; without a date, the next such time of day."""
        if day is not None:
            return at_local_time(day, clock, self.zone)
        today = at_local_time(self.now.date(), clock, self.zone)
        if today > self.now:
            return today
        return at_local_time(self.now.date() + timedelta(days=1), clock, self.zone)

    def _read_date(self) -> date | None:
        """Parse the date of a one-time schedule; return None if there is none."""
        today, word = self.now.date(), self._peek()
        if word in ("today", "tomorrow"):
            self._next()
            return today + timedelta(days=word == "tomorrow")
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", word):
            return self._make_date(*map(int, self._next().split("-")))
        if word in ("next", "this"):
            self._next()
        if self._peek() in _DAYS:
            ahead = (_DAYS[self._next()] - today.weekday()) % 7
            return today + timedelta(days=ahead or 7)
        found = self._read_day_of_month()
        if found is None:
            return None
        month, day = found
        year = self._next() if re.fullmatch(r"\d{4}", self._peek()) else ""
        if year:
            return self._make_date(int(year), month, day)
        return self._next_date(month, day)

    def _read_day_of_month(self) -> tuple[int, int] | None:
        """Parse a month and a day in either order: `may 1`, `1st of may`; return None if there is none."""
        self._skip("the")
        if self._peek() in _MONTHS:
            month = _MONTHS[self._next()]
            self._skip("the")
            return month, self._read_day_number()
        following = [word for word in self.words[self.position + 1 :] if word != "of"][:1]
        if following and following[0] in _MONTHS:
            day = self._read_day_number()
            self._skip("of")
            return _MONTHS[self._next()], day
        return None

    def _read_repeated(self, clocks: list[str]) -> Schedule:
        word = self._next()
        if word in _PERIODS:
            amount, unit = 1, _PERIODS[word]
        else:
            if self._peek() in (*_DAYS, "weekday", "weekend"):
                return self._weekly(self._read_weekdays(), self._finish_clocks(clocks))
            if self._peek() in _MONTHS:
                return self._yearly(clocks)
            if self._names_nth_day():
                return self._read_monthly(clocks, is_repeated=True)
            amount, unit = self._read_amount()
        return self._read_period(amount, unit, clocks)

    def _read_period(self, amount: int, unit: str, clocks: list[str]) -> Schedule:
        match unit:
            case "minute" | "min" | "hour":
                return self._read_interval(amount, unit, clocks)
            case "day":
                return self._read_days_apart(amount, self._finish_clocks(clocks))
            case "week":
                return self._read_weeks(amount, clocks)
            case "month" if amount == 1:
                return self._read_monthly(clocks, is_repeated=True)
            case "year" if amount == 1:
                return self._yearly(clocks)
        raise _not_understood(self.text)

    def _read_days_apart(self, amount: int, clocks: list[str]) -> Schedule:
        if amount == 1:
            return self._cron(clocks, "*", "*", "*")
        (clock,) = _require_one(clocks, self.text)
        return every_days(amount, clock, self._first_day(clock), self.zone)

    def _read_interval(self, amount: int, unit: str, clocks: list[str]) -> Schedule:
        length = amount * _UNITS[unit]
        while self._peek() == "and":
            self._next()
            length += self._read_span()
        if clocks:
            raise _not_understood(self.text)
        return every(length, self.now)

    def _read_weeks(self, amount: int, clocks: list[str]) -> Schedule:
        self._skip("on")
        days = self._read_weekdays()
        found = self._finish_clocks(clocks)
        if amount == 1:
            return self._weekly(days, found)
        (clock,), (day,) = _require_one(found, self.text), _require_one(days, self.text)
        ahead = (day - self.now.weekday()) % 7
        first = self.now.date() + timedelta(days=ahead)
        if at_local_time(first, clock, self.zone) <= self.now:
            first += timedelta(days=7)
        return every_days(7 * amount, clock, first, self.zone)

    def _read_monthly(self, clocks: list[str], *, is_repeated: bool = False) -> Schedule:
        """Parse `the 1st and 15th of each month`, `the last day of …`, or `the second tuesday of …`."""
        if is_repeated:
            self._skip("on")
        self._skip("the")
        ordinal = self._peek()
        is_last = ordinal == "last"
        following = self.words[self.position + 1] if self.position + 1 < len(self.words) else ""
        if following in _DAYS and (is_last or ordinal in _ORDINALS):
            self._next()
            cron_day = (_DAYS[self._next()] + 1) % 7
            days, weekday = "*", f"{cron_day}L" if is_last else f"{cron_day}#{_ORDINALS[ordinal]}"
        elif is_last:
            self._next()
            self._skip("day")
            days, weekday = "L", "*"
        else:
            days, weekday = self._read_month_days(), "*"
        if not self._read_of_month() and not is_repeated:
            return self._read_single_date(days, weekday, clocks)
        return self._cron(self._finish_clocks(clocks), days, "*", weekday)

    def _read_single_date(self, days: str, weekday: str, clocks: list[str]) -> Schedule:
        """Parse a one-time date such as `the 24th of december at 18:00`."""
        self._skip("of")
        if self._peek() not in _MONTHS or weekday != "*" or not days.isdecimal():
            raise _not_understood(self.text)
        month, day = _MONTHS[self._next()], int(days)
        year = self._next() if re.fullmatch(r"\d{4}", self._peek()) else ""
        chosen = self._make_date(int(year), month, day) if year else self._next_date(month, day)
        (clock,) = _require_one(self._finish_clocks(clocks), self.text)
        return once(at_local_time(chosen, clock, self.zone))

    def _read_month_days(self) -> str:
        found = [self._read_day_number()]
        while self._peek() == "and" or self._ordinal(self._peek()):
            self._skip("and")
            self._skip("the")
            found.append(self._read_day_number())
        self._skip("day")
        return ",".join(map(str, found))

    def _read_of_month(self) -> bool:
        """Parse `of each month` or `every month`; return True if found."""
        start = self.position
        self._skip("of")
        if self._peek() in ("each", "every", "the", "a"):
            self._next()
            if self._peek() == "month":
                self._next()
                return True
        self.position = start
        return False

    def _yearly(self, clocks: list[str]) -> Schedule:
        self._skip("on")
        found = self._read_day_of_month()
        if found is None:
            raise _not_understood(self.text)
        month, day = found
        self._next_date(month, day)  # raises if there is none
        return self._cron(self._finish_clocks(clocks), str(day), str(month), "*")

    def _weekly(self, days: Sequence[int], clocks: list[str]) -> Schedule:
        return self._cron(clocks, "*", "*", ",".join(str((day + 1) % 7) for day in sorted(set(days))))

    def _cron(self, clocks: list[str], day: str, month: str, weekday: str) -> Schedule:
        times = [tuple(map(int, clock.split(":"))) for clock in dict.fromkeys(clocks)]
        expressions = [f"{minute} {hour} {day} {month} {weekday}" for hour, minute in times]
        return Schedule(kind="cron", expressions=check_expressions(*expressions))

    def _read_weekdays(self) -> list[int]:
        days = list(self._read_weekday())
        while self._peek() in ("and", "or") or self._peek() in _DAYS:
            self._skip("and")
            days += self._read_weekday()
        return days

    def _read_weekday(self) -> Sequence[int]:
        word = self._next()
        if word in ("weekday", "weekdays"):
            return _WEEKDAYS
        if word in ("weekend", "weekends"):
            return _WEEKEND
        if word not in _DAYS:
            raise _not_understood(self.text)
        if self._peek() in ("to", "through") and self.position + 1 < len(self.words):
            self._next()
            last = self._next()
            if last not in _DAYS or _DAYS[last] < _DAYS[word]:
                raise _not_understood(self.text)
            return range(_DAYS[word], _DAYS[last] + 1)
        return (_DAYS[word],)

    def _read_amount(self) -> tuple[int, str]:
        amount = 1
        if self._peek().isdecimal() or self._peek() in _NUMBERS:
            amount = self._read_number()
        unit = self._next()
        unit = unit[:-1] if unit.endswith("s") else unit
        return amount, unit

    def _read_duration(self) -> timedelta:
        self._next()
        length = self._read_span()
        while self._peek() == "and":
            self._next()
            length += self._read_span()
        return length

    def _read_span(self) -> timedelta:
        if self._peek() == "half":
            self._next()
            self._skip("an")
            if self._next() != "hour":
                raise _not_understood(self.text)
            return timedelta(minutes=30)
        amount, unit = self._read_amount()
        if unit not in _UNITS or amount < 1:
            raise _not_understood(self.text)
        try:
            return amount * _UNITS[unit]
        except OverflowError:
            raise ScheduleError("The time of the schedule is too far in the future.") from None

    def _read_number(self) -> int:
        word = self._next()
        number = int(word[:6]) if word.isdecimal() else _NUMBERS.get(word, 0)
        if number < 1:
            raise _not_understood(self.text)
        return number

    def _read_day_number(self) -> int:
        word = self._next()
        digits = re.sub(r"(st|nd|rd|th)$", "", word)
        number = int(digits) if digits.isdecimal() else _ORDINALS.get(word, 0)
        if not 1 <= number <= 31:
            raise _not_understood(self.text)
        return number

    def _finish_clocks(self, clocks: list[str]) -> list[str]:
        """Return `clocks`, the times of day parsed so far; if it is empty, parse the times that follow."""
        if clocks:
            return clocks
        if self.position >= len(self.words):
            raise ScheduleError(
                f"The schedule {self.text.strip()[:80]!r} has no time: add, for example, at 9:00."
            )
        return self._read_clocks()

    def _read_clocks(self) -> list[str]:
        self._skip("at")
        clocks = [self._read_clock()]
        while self._peek() == "and" or (self._peek() and self._peek()[0].isdecimal() and clocks):
            start = self.position
            self._skip("and")
            self._skip("at")
            try:
                clocks.append(self._read_clock())
            except ScheduleError:
                self.position = start
                break
        return clocks

    def _read_clock(self) -> str:
        word = self._next()
        if word in ("noon", "midday", "midnight"):
            return "00:00" if word == "midnight" else "12:00"
        found = re.fullmatch(r"(\d{1,2})(?::(\d{2})(?::00)?)?", word)
        if found is None:
            raise _not_understood(self.text)
        hour, minute = int(found[1]), int(found[2] or 0)
        if self._peek() in ("am", "pm"):
            if not 1 <= hour <= 12:
                raise _not_understood(self.text)
            hour = hour % 12 + 12 * (self._next() == "pm")
        self._skip("o'clock")
        if hour > 23 or minute > 59:
            raise ScheduleError(f"{word!r} is not a time of the day.")
        return f"{hour:02d}:{minute:02d}"

    def _first_day(self, clock: str) -> date:
        today = self.now.date()
        return today if at_local_time(today, clock, self.zone) > self.now else today + timedelta(days=1)

    def _names_nth_day(self) -> bool:
        """Return True if the next words name a day of the month, such as `1st` or `last friday`."""
        return self._peek() in ("last", "first") or bool(self._ordinal(self._peek()))

    def _ordinal(self, word: str) -> bool:
        return word == "last" or bool(re.fullmatch(r"\d{1,2}(st|nd|rd|th)", word))

    def _next_date(self, month: int, day: int) -> date:
        """Return the next date after today with this month and day, in a later year if necessary."""
        today = self.now.date()
        for year in range(today.year, today.year + 9):
            with contextlib.suppress(ValueError):
                if (found := date(year, month, day)) > today:
                    return found
        raise ScheduleError(f"{calendar.month_name[month]} never has a day {day}. Choose another date.")

    def _make_date(self, year: int, month: int, day: int) -> date:
        try:
            return date(year, month, day)
        except ValueError:
            raise ScheduleError(f"There is no date {year:04d}-{month:02d}-{day:02d}.") from None

    def _peek(self) -> str:
        return self.words[self.position] if self.position < len(self.words) else ""

    def _next(self) -> str:
        if self.position >= len(self.words):
            raise _not_understood(self.text)
        self.position += 1
        return self.words[self.position - 1]

    def _skip(self, word: str) -> None:
        if self._peek() == word:
            self.position += 1
