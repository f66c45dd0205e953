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

/** A time of the last half year or so, with its date unless it is today. */
export function dated(at: number): string {
  const isToday = new Date(at * 1000).toDateString() === new Date().toDateString();
  return isToday ? moment(at, "day") : `${moment(at, "week")} ${moment(at, "day")}`;
}

export const clock = (at: number): string => new Date(at * 1000).toLocaleTimeString("en-GB");

export function moment(at: number, period: string): string {
  const date = new Date(at * 1000);
  return period === "hour" || period === "day"
    ? date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })
    : date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

/** Who makes a call or asks: the client, its user and its process; empty if no client is known. */
export function caller(of: { client?: string; user?: string; process?: string | number; [field: string]: any }): string {
  return of.client ? [of.client, of.user, of.process && `process ${of.process}`].filter(Boolean).join(" · ") : "";
}

/** The times of round clock hours or days between two times, at most seven, with the text of each. */
export function timeTicks(since: number, until: number): { at: number; text: string }[] {
  const hours = (until - since) / 3600;
  const minutes = hours <= 1.5 ? 15 : hours <= 30 ? 240 : hours <= 200 ? 1440 : 7200;
  const date = new Date(since * 1000);
  date.setHours(minutes < 60 ? date.getHours() : 0, 0, 0, 0);
  const ticks = [];
  for (; date.getTime() / 1000 < until; date.setMinutes(date.getMinutes() + minutes)) {
    const at = date.getTime() / 1000;
    const isMidnight = !date.getHours() && !date.getMinutes();
    if (at >= since) ticks.push({ at, text: moment(at, isMidnight ? "week" : "day") });
  }
  return ticks;
}

export const plural = (count: number, word: string, many = `${word}s`): string => `${whole(count)} ${count === 1 ? word : many}`;
