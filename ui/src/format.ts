// Numbers, times and durations as text.

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const WHOLE = new Intl.NumberFormat("en");

export const short = (value: number): string => (Math.abs(value) < 10_000 ? WHOLE.format(Math.round(value)) : COMPACT.format(value));
export const whole = (value: number): string => WHOLE.format(Math.round(value));
export const percent = (part: number, all: number): string => (all ? `${Math.round((100 * part) / all)}%` : "–");
/** A share with one decimal place, for small differences. */
export const share = (part: number, all: number): string => (all ? `${((100 * part) / all).toFixed(1)}%` : "–");

export function dollars(value: number): string {
  if (!value) return "$0";
  return value < 0.01 ? "< $0.01" : value < 100 ? `$${value.toFixed(2)}` : `$${whole(value)}`;
}

export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return "< 1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60_000)} min`;
}

export const clock = (at: number): string => new Date(at * 1000).toLocaleTimeString("en-GB");

export function moment(at: number, period: string): string {
  const date = new Date(at * 1000);
  return period === "hour" || period === "day"
    ? date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })
    : date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

export const plural = (count: number, word: string, many = `${word}s`): string => `${whole(count)} ${count === 1 ? word : many}`;
