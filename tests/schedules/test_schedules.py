"""Schedules in plain English and cron syntax, and the times at which they run."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfold.schedules import Schedule, ScheduleError, find_zone, parse_schedule

BERLIN = ZoneInfo("Europe/Berlin")
TUESDAY = datetime(2026, 11, 17, 13, 20, tzinfo=UTC)  # 14:20 in Berlin
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

zones = st.sampled_from(
    ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Sao_Paulo", "UTC"]
).map(ZoneInfo)
moments = st.datetimes(datetime(2024, 1, 1), datetime(2029, 1, 1), timezones=st.just(UTC))
clocks = st.tuples(st.integers(0, 23), st.integers(0, 59))


def list_times(text: str, count: int = 3, *, now: datetime = TUESDAY, zone: ZoneInfo = BERLIN) -> list[str]:
    """Return the next local times of a schedule, such as `Tue 2026-11-17 17:00`."""
    times = parse_schedule(text, now, zone).upcoming(now, zone, count)
    return [f"{each.astimezone(zone):%a %Y-%m-%d %H:%M}" for each in times]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("in 20 minutes", "Tue 2026-11-17 14:40"),
        ("in an hour and 30 minutes", "Tue 2026-11-17 15:50"),
        ("in half an hour", "Tue 2026-11-17 14:50"),
        ("tomorrow at 9", "Wed 2026-11-18 09:00"),
        ("at 5pm", "Tue 2026-11-17 17:00"),
        ("at 9", "Wed 2026-11-18 09:00"),
        ("on Friday at noon", "Fri 2026-11-20 12:00"),
        ("next Monday at 8am", "Mon 2026-11-23 08:00"),
        ("2026-12-24 at 18:00", "Thu 2026-12-24 18:00"),
        ("2026-12-24T18:00", "Thu 2026-12-24 18:00"),
        ("the 24th of December at 6 pm", "Thu 2026-12-24 18:00"),
        ("on May 1 at 12am", "Sat 2027-05-01 00:00"),
        ("on 29 February at noon", "Tue 2028-02-29 12:00"),
        ("every 2 hours", "Tue 2026-11-17 16:20"),
        ("hourly", "Tue 2026-11-17 15:20"),
        ("every weekday at 8:30", "Wed 2026-11-18 08:30"),
        ("every weekend at 10", "Sat 2026-11-21 10:00"),
        ("every day at 8:30 and 17:00", "Tue 2026-11-17 17:00"),
        ("at 9 every day", "Wed 2026-11-18 09:00"),
        ("every Mon, Wed and Fri at 7:15 pm", "Wed 2026-11-18 19:15"),
        ("on Mondays at 9", "Mon 2026-11-23 09:00"),
        ("every Monday to Friday at 8", "Wed 2026-11-18 08:00"),
        ("weekly on Thursday at 9", "Thu 2026-11-19 09:00"),
        ("every 2 weeks on Monday at 9", "Mon 2026-11-23 09:00"),
        ("every other day at 9", "Wed 2026-11-18 09:00"),
        ("on the first of each month at noon", "Tue 2026-12-01 12:00"),
        ("on the 1st and 15th of every month at 8", "Tue 2026-12-01 08:00"),
        ("every month on the 20th at 9", "Fri 2026-11-20 09:00"),
        ("on the last day of every month at 18:00", "Mon 2026-11-30 18:00"),
        ("on the second Tuesday of each month at 9", "Tue 2026-12-08 09:00"),
        ("on the last Friday of every month at 17:00", "Fri 2026-11-27 17:00"),
        ("every year on December 24 at 18:00", "Thu 2026-12-24 18:00"),
        ("30 8 * * 1-5", "Wed 2026-11-18 08:30"),
        ("@daily", "Wed 2026-11-18 00:00"),
    ],
)
def test_schedule_in_plain_english_or_cron_syntax_is_parsed_to_the_expected_first_run_time(
    text: str, first: str
) -> None:
    assert list_times(text, 1) == [first]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("every day", "has no time"),
        ("every Monday", "has no time"),
        ("tomorrow", "has no time"),
        ("every day at 8 please", "was not understood"),
        ("every blue moon", "was not understood"),
        ("every 30 seconds", "was not understood"),
        ("every evening at 8", "was not understood"),
        ("every 0 minutes", "was not understood"),
        ("", "was not understood"),
        ("every day at 25:00", "not a time of the day"),
        ("today at 8", "has passed already"),
        ("2020-01-01 at 8:00", "has passed already"),
        ("on the 31st of February at 8", "February never has a day 31"),
        ("on the 31st of February", "February never has a day 31"),
        ("every year on 31 February at noon", "February never has a day 31"),
        ("2027-02-29 at noon", "no date"),
        ("in 99999999 weeks", "too far in the future"),
        ("99 * * * *", "not a valid cron expression"),
        ("0 0 31 2 *", "not a valid cron expression"),
        ("0 0 0 1 1 1", "five fields"),
        ("at 8 " * 100, "characters"),
    ],
)
def test_schedule_with_unknown_words_or_an_impossible_time_raises_schedule_error(
    text: str, problem: str
) -> None:
    with pytest.raises(ScheduleError, match=problem):
        parse_schedule(text, TUESDAY, BERLIN)


def test_looking_up_an_unknown_time_zone_raises_schedule_error() -> None:
    for name in ("Mars/Olympus", "../../etc/passwd", "Europe"):
        with pytest.raises(ScheduleError, match="not a known time zone"):
            find_zone(name)


WORDS = st.sampled_from(
    [
        *(
            "every",
            "each",
            "on",
            "the",
            "at",
            "in",
            "and",
            "of",
            "month",
            "day",
            "week",
            "first",
            "last",
            "am",
        ),
        *("1st", "31st", "2", "8:30", "0", "99", "noon", "monday", "weekday", "may", "minutes", "tomorrow"),
        *("2026-02-30", "next", "year", "hours", "*", "o'clock", "to"),
    ]
)


@given(text=st.one_of(st.lists(WORDS, max_size=8).map(" ".join), st.text(string.printable, max_size=60)))
def test_parsing_arbitrary_text_returns_a_schedule_with_a_future_run_time_or_raises_schedule_error(
    text: str,
) -> None:
    try:
        schedule = parse_schedule(text, TUESDAY, BERLIN)
    except ScheduleError:
        return
    following = schedule.next_after(TUESDAY, BERLIN)
    assert following is not None
    assert following > TUESDAY


@given(days=st.sets(st.sampled_from(DAYS), min_size=1), clock=clocks, now=moments, zone=zones)
def test_weekly_schedule_runs_on_its_days_at_its_time_except_for_times_skipped_by_daylight_saving(
    days: set[str], clock: tuple[int, int], now: datetime, zone: ZoneInfo
) -> None:
    text = f"every {' and '.join(sorted(days))} at {clock[0]}:{clock[1]:02d}"
    for moment in parse_schedule(text, now, zone).upcoming(now, zone, 8):
        local = moment.astimezone(zone)
        assert DAYS[local.weekday()] in days
        before = (moment - timedelta(hours=3)).astimezone(zone)
        assert (local.hour, local.minute) == clock or local.utcoffset() != before.utcoffset()


@given(
    expression=st.sampled_from(
        ["*/15 * * * *", "30 2 * * *", "0 * * * *", "5 1-3 * * *", "0 12 L * *", "15 2 * * 0", "0 3 * * 1#2"]
    ),
    now=moments,
    zone=zones,
)
def test_run_times_of_a_cron_expression_are_ascending_and_in_the_future(
    expression: str, now: datetime, zone: ZoneInfo
) -> None:
    times = list(parse_schedule(expression, now, zone).upcoming(now, zone, 6))
    assert len(times) == 6
    assert all(earlier < later for earlier, later in zip([now, *times], times, strict=False))


@given(hours=st.integers(1, 72), now=moments, later=st.integers(0, 10**7), zone=zones)
def test_schedule_every_n_hours_runs_at_multiples_of_n_hours_after_its_start_time(
    hours: int, now: datetime, later: int, zone: ZoneInfo
) -> None:
    schedule = parse_schedule(f"every {hours} hours", now, zone)
    moment = now + timedelta(seconds=later)
    following = schedule.next_after(moment, zone)
    assert following is not None
    assert timedelta(0) < following - moment <= timedelta(hours=hours)
    assert (following.timestamp() - now.timestamp()) % (hours * 3600) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    "text", ["in 2 days", "every 3 days at 9", "every weekday at 8:30", "every 90 minutes"]
)
def test_schedule_converted_to_json_and_back_is_equal(text: str) -> None:
    schedule = parse_schedule(text, TUESDAY, BERLIN)
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_schedule_for_a_time_skipped_by_daylight_saving_runs_once_right_after_the_skipped_hour() -> None:
    now = datetime(2026, 3, 28, 12, tzinfo=UTC)
    expected = ["Sun 2026-03-29 03:00", "Mon 2026-03-30 02:30"]
    assert list_times("every day at 2:30", 2, now=now) == expected
    assert list_times("2026-03-29 at 2:30", 1, now=now) == expected[:1]
    assert list_times("every 2 days at 2:30", 2, now=now) == [expected[0], "Tue 2026-03-31 02:30"]


def test_schedule_for_a_time_repeated_at_the_end_of_daylight_saving_runs_once() -> None:
    now = datetime(2026, 10, 24, 12, tzinfo=UTC)
    schedule = parse_schedule("every day at 2:30", now, BERLIN)
    first, second = schedule.upcoming(now, BERLIN, 2)
    assert first == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # the first 2:30, in summer time
    assert second == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
    in_second_hour = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 2:10 for the second time
    assert schedule.next_after(in_second_hour, BERLIN) == second


def test_schedules_based_on_elapsed_hours_are_not_shifted_by_daylight_saving_changes() -> None:
    before_gap = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    for text in ("in 2 hours", "every 2 hours"):
        following = parse_schedule(text, before_gap, BERLIN).next_after(before_gap, BERLIN)
        assert following == before_gap + timedelta(hours=2)
    autumn = datetime(2026, 10, 24, 22, tzinfo=UTC)  # midnight in Berlin
    hourly = parse_schedule("0 * * * *", autumn, BERLIN)
    times = [each for each in hourly.upcoming(autumn, BERLIN, 30) if each.astimezone(BERLIN).day == 25]
    assert len(times) == 24  # of the 25 hours of this day; the first began at the start
