"""Time zones by their IANA names, and the name of this machine's time zone."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from toolfold.tools.schedules.schedule import ScheduleError


def find_zone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name. Raises ScheduleError if it is unknown."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a directory of the database is an OSError
        raise ScheduleError(
            f"{name[:60]!r} is not a known time zone. Use a name such as Europe/Berlin, or install the"
            " package tzdata if this machine has no time zone database."
        ) from None


def local_zone_name() -> str:
    """Return the IANA name of this machine's time zone; UTC if it is unknown."""
    import tzlocal

    try:
        return tzlocal.get_localzone_name() or "UTC"
    except (ZoneInfoNotFoundError, ValueError, LookupError, OSError):
        return "UTC"
