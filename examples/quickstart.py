"""A typed function becomes a tool; a model's call becomes a result."""

from typing import Literal

from toolfold import open_runtime, tool


@tool(toolset="weather", emoji="🌦️", parallel=True)
def forecast(
    city: str, days: int = 1, unit: Literal["celsius", "fahrenheit"] = "celsius"
) -> dict[str, object]:
    """Tell the weather of the coming days.

    Args:
        city: Where, by name.
        days: How many days ahead.
        unit: The scale of the temperatures.
    """
    return {"city": city, "days": days, "highs": [19 + day for day in range(days)], "unit": unit}


def main() -> None:
    with open_runtime() as runtime:
        runtime.registry.add(forecast)
        session = runtime.session(["weather"])

        print(session.definitions())  # what to send to the model

        # Models send text for numbers now and then: "3" is read as 3.
        result = session.call_sync("forecast", '{"city": "Porto", "days": "3"}')
        print(result.text)  # what to send back


if __name__ == "__main__":
    main()
