"""Turn a typed function into a tool, and run a model's call of it."""

from typing import Literal

from toolfold import open_runtime, tool


@tool(toolset="weather", emoji="🌦️", parallel=True)
def forecast(
    city: str, days: int = 1, unit: Literal["celsius", "fahrenheit"] = "celsius"
) -> dict[str, object]:
    """Return the weather forecast.

    Args:
        city: Name of the city.
        days: Number of days.
        unit: Unit of the temperatures.
    """
    return {"city": city, "days": days, "highs": [19 + day for day in range(days)], "unit": unit}


def main() -> None:
    with open_runtime() as runtime:
        runtime.registry.add(forecast)
        session = runtime.session(["weather"])

        print(session.definitions())  # what to send to the model

        # Models sometimes send text instead of numbers: "3" is converted to 3.
        result = session.call_sync("forecast", '{"city": "Porto", "days": "3"}')
        print(result.text)  # what to send back


if __name__ == "__main__":
    main()
