"""Schedules in cron syntax, as times and as intervals, and when they run."""

from __future__ import annotations

import itertools
import string
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfold.tools.schedules import Schedule, ScheduleError, find_zone, parse_schedule

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
        ("in 1 day", "Wed 2026-11-18 14:20"),
        ("2026-12-24T18:00", "Thu 2026-12-24 18:00"),
        ("2026-12-24 18:00", "Thu 2026-12-24 18:00"),
        ("2026-12-24T18:00:00Z", "Thu 2026-12-24 19:00"),
        ("2026-12-24T18:00+09:00", "Thu 2026-12-24 10:00"),
        ("Every 2 hours", "Tue 2026-11-17 16:20"),
        ("every hour", "Tue 2026-11-17 15:20"),
        ("every 90 minutes", "Tue 2026-11-17 15:50"),
        ("every day at 17:00", "Tue 2026-11-17 17:00"),
        ("every day at 8:30", "Wed 2026-11-18 08:30"),
        ("every 3 days at 9:00", "Wed 2026-11-18 09:00"),
        ("every 3 days", "Fri 2026-11-20 14:20"),
        ("30 8 * * 1-5", "Wed 2026-11-18 08:30"),
        ("0 9 * * 2#2", "Tue 2026-12-08 09:00"),
        ("0 18 L * *", "Mon 2026-11-30 18:00"),
        ("@daily", "Wed 2026-11-18 00:00"),
    ],
)
def test_schedule_is_parsed_to_the_expected_first_run_time(text: str, first: str) -> None:
    assert list_times(text, 1) == [first]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("every Monday", "was not understood"),
        ("tomorrow at 9", "was not understood"),
        ("every day at 8:00 please", "was not understood"),
        ("every hour at 8:00", "was not understood"),
        ("in 2 days at 8:00", "was not understood"),
        ("every 30 seconds", "was not understood"),
        ("", "was not understood"),
        ("every 0 minutes", "An interval must be"),
        ("every 0 days", "An interval must be"),
        ("every day at 25:00", "not a time of the day"),
        ("2020-01-01T08:00", "has passed already"),
        ("2026-11-17T14:20:30+01:00", "has passed already"),
        ("2027-02-29T12:00", "is not a time"),
        ("2027-02-28T24:30", "is not a time"),
        ("9999-12-31T23:59", "too far in the future"),
        ("99 * * * *", "not a valid cron expression"),
        ("0 0 31 2 *", "not a valid cron expression"),
        ("0 0 0 1 1 1", "five fields"),
        ("at 8 " * 100, "characters"),
    ],
)
def test_unknown_or_impossible_schedule_raises_schedule_error(text: str, problem: str) -> None:
    now = TUESDAY + timedelta(minutes=1)
    with pytest.raises(ScheduleError, match=problem):
        parse_schedule(text, now, BERLIN)


def test_looking_up_an_unknown_time_zone_raises_schedule_error() -> None:
    for name in ("Mars/Olympus", "../../etc/passwd", "Europe"):
        with pytest.raises(ScheduleError, match="not a known time zone"):
            find_zone(name)


WORDS = st.sampled_from(
    [
        *(
            "every",
            "in",
            "at",
            "day",
            "days",
            "hours",
            "minutes",
            "2",
            "0",
            "99",
            "999999",
            "8:30",
            "24:00",
            "*",
        ),
        *("2026-02-30", "9999-12-31T23:59", "2026-11-17T14:21+23:59", "monday", "@daily", "1-5", "L"),
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


@given(days=st.integers(1, 40), clock=clocks, now=moments, zone=zones)
def test_schedule_in_days_runs_at_its_time_except_for_times_skipped_by_daylight_saving(
    days: int, clock: tuple[int, int], now: datetime, zone: ZoneInfo
) -> None:
    text = f"every {days} days at {clock[0]}:{clock[1]:02d}"
    times = list(parse_schedule(text, now, zone).upcoming(now, zone, 8))
    for moment in times:
        local = moment.astimezone(zone)
        before = (moment - timedelta(hours=3)).astimezone(zone)
        assert (local.hour, local.minute) == clock or local.utcoffset() != before.utcoffset()
    dates = [moment.astimezone(zone).date() for moment in times]
    assert all((later - earlier).days == days for earlier, later in itertools.pairwise(dates))


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


@pytest.mark.parametrize("text", ["in 2 days", "every 3 days at 9:00", "30 8 * * 1-5", "every 90 minutes"])
def test_schedule_converted_to_json_and_back_is_equal(text: str) -> None:
    schedule = parse_schedule(text, TUESDAY, BERLIN)
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_schedule_for_a_time_skipped_by_daylight_saving_runs_once_right_after_the_skipped_hour() -> None:
    now = datetime(2026, 3, 28, 12, tzinfo=UTC)
    expected = ["Sun 2026-03-29 03:00", "Mon 2026-03-30 02:30"]
    assert list_times("every day at 2:30", 2, now=now) == expected
    assert list_times("2026-03-29T02:30", 1, now=now) == expected[:1]
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
