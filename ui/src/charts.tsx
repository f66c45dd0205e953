// Charts as plain SVG. Each has a text alternative; colours come from the theme.

import { useState } from "preact/hooks";
import { dated, short, timeTicks } from "./format";

export interface Bar {
  /** When the interval begins, in seconds. */
  at: number;
  /** Stacked from the bottom, one value for each series. */
  values: number[];
}

const WIDTH = 720;
const HEIGHT = 200;
const LEFT = 56;
const BOTTOM = 32;

function niceMax(value: number, smallest: number): number {
  if (value <= smallest) return smallest;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value) ?? value;
}

/** Bars over the time from the first one to `until`. */
export function BarChart({ title, series, bars, until, format = short, smallest = 4 }: {
  title: string;
  until: number;
  series: { name: string; class: string }[];
  bars: Bar[];
  format?: (value: number) => string;
  /** The least height of the axis. */
  smallest?: number;
}) {
  const [chosen, setChosen] = useState<number | null>(null);
  const top = niceMax(Math.max(...bars.map((bar) => bar.values.reduce((sum, value) => sum + value, 0)), 0), smallest);
  const step = (WIDTH - LEFT) / bars.length;
  const y = (value: number) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - 10);
  const totals = series.map((each, index) => `${each.name}: ${format(bars.reduce((sum, bar) => sum + bar.values[index], 0))}`);
  const current = chosen === null ? null : bars[chosen];
  const since = bars[0]?.at ?? until;
  const isEmpty = bars.every((bar) => bar.values.every((value) => !value));
  return (
    <figure class="chart">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${title}. ${totals.join(", ")}.`} onMouseLeave={() => setChosen(null)}>
        {[0, 0.5, 1].map((share) => (
          <g key={share}>
            <line class="grid" x1={LEFT} x2={WIDTH} y1={y(top * share)} y2={y(top * share)} />
            <text class="axis" x={LEFT - 8} y={y(top * share) + 5} text-anchor="end">{format(top * share)}</text>
          </g>
        ))}
        {bars.map((bar, index) => {
          let below = 0;
          return (
            <g key={index} onMouseEnter={() => setChosen(index)}>
              <rect class={`hover ${chosen === index ? "on" : ""}`} x={LEFT + index * step} y={0} width={step} height={HEIGHT - BOTTOM} />
              {bar.values.map((value, number) => {
                if (!value) return null;
                const from = below;
                below += value;
                const height = Math.max(2, y(from) - y(below));
                return <rect key={number} class={`bar ${series[number].class}`} x={LEFT + index * step + step * 0.15} width={Math.max(2, step * 0.7)} y={y(from) - height} height={height} rx="2" />;
              })}
            </g>
          );
        })}
        {timeTicks(since, until).map(({ at, text }) => {
          const x = LEFT + ((at - since) / (until - since)) * (WIDTH - LEFT);
          if (x < LEFT + 20 || x > WIDTH - 24) return null;
          return <g key={at}><line class="tick" x1={x} x2={x} y1={HEIGHT - BOTTOM} y2={HEIGHT - BOTTOM + 5} /><text class="axis" x={x} y={HEIGHT - 6} text-anchor="middle">{text}</text></g>;
        })}
        {isEmpty && <text class="axis" x={(LEFT + WIDTH) / 2} y={(HEIGHT - BOTTOM) / 2 + 4} text-anchor="middle">Nothing in this period</text>}
      </svg>
      <figcaption>
        {series.map((each, index) => (
          <span key={each.name} class="legend"><i class={`dot ${each.class}`} />{each.name}{current && <b>{format(current.values[index])}</b>}</span>
        ))}
        <span class="legend-time">{current ? `from ${dated(current.at)}` : ""}</span>
      </figcaption>
    </figure>
  );
}

export function ShareBar({ parts, label }: { parts: { name: string; value: number; class: string }[]; label: string }) {
  const all = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  let x = 0;
  return (
    <figure class="share">
      <svg viewBox="0 0 400 12" preserveAspectRatio="none" role="img" aria-label={`${label}: ${parts.map((part) => `${part.name} ${part.value}`).join(", ")}`}>
        {parts.filter((part) => part.value).map((part) => {
          const width = (400 * part.value) / all;
          x += width;
          return <rect key={part.name} class={`bar ${part.class}`} x={x - width} y="0" width={Math.max(1, width - 1)} height="12" rx="2" />;
        })}
      </svg>
      <figcaption>
        {parts.filter((part) => part.value).map((part) => (
          <span key={part.name} class="legend"><i class={`dot ${part.class}`} />{part.name}<b>{short(part.value)}</b></span>
        ))}
      </figcaption>
    </figure>
  );
}

export interface Curve {
  name: string;
  class: string;
  /** Write the mark of each point beside it. */
  isNumbered?: boolean;
  points: { x: number; y: number; mark: string; label: string }[];
}

const LINE_HEIGHT = 320;
const MARKERS = ["circle", "square", "diamond", "triangle"] as const;

/** Numbers 1, 2 and 5 times a power of ten within a range; only powers of ten if the range is wide. */
function logTicks(low: number, high: number): number[] {
  const steps = high - low > 2.5 ? [1] : [1, 2, 5];
  const powers = Array.from({ length: 9 }, (_, power) => power);
  return powers.flatMap((power) => steps.map((step) => step * 10 ** power)).filter((value) => Math.log10(value) >= low - 0.02 && Math.log10(value) <= high + 0.02);
}

function Marker({ shape, x, y, label }: { shape: (typeof MARKERS)[number]; x: number; y: number; label: string }) {
  const path = {
    circle: `M${x - 4.5} ${y}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0`,
    square: `M${x - 4} ${y - 4}h8v8h-8z`,
    diamond: `M${x} ${y - 6}l5.5 6l-5.5 6l-5.5 -6z`,
    triangle: `M${x} ${y - 5.5}l5.5 10h-11z`,
  }[shape];
  return <path class="marker" d={path}><title>{label}</title></path>;
}

/** Lines over a logarithmic x axis; the y axis is a share. Curves differ in colour and in their markers. */
export function LineChart({ title, curves, xLabel, yLabel, note }: { title: string; curves: Curve[]; xLabel: string; yLabel: string; note?: string }) {
  const points = curves.flatMap((curve) => curve.points);
  if (!points.length) return null;
  const low = Math.log10(Math.max(1, Math.min(...points.map((point) => point.x))));
  const high = Math.max(low + 0.1, Math.log10(Math.max(...points.map((point) => point.x), 10)));
  const bottom = Math.max(0, Math.floor(Math.min(...points.map((point) => point.y)) * 10) / 10);
  const x = (value: number) => LEFT + 12 + ((Math.log10(Math.max(1, value)) - low) / (high - low)) * (WIDTH - LEFT - 36);
  const y = (value: number) => LINE_HEIGHT - 62 - ((value - bottom) / (1 - bottom || 1)) * (LINE_HEIGHT - 106);
  const text = curves.map((curve) => curve.points[curve.points.length - 1].label).join("; ");
  return (
    <figure class="chart">
      <svg viewBox={`0 0 ${WIDTH} ${LINE_HEIGHT}`} role="img" aria-label={`${title}. ${text}.`}>
        {[0, 0.25, 0.5, 0.75, 1].map((step) => {
          const value = bottom + (1 - bottom) * step;
          return (
            <g key={step}>
              <line class="grid" x1={LEFT} x2={WIDTH - 8} y1={y(value)} y2={y(value)} />
              <text class="axis" x={LEFT - 8} y={y(value) + 5} text-anchor="end">{`${Math.round(value * 100)}%`}</text>
            </g>
          );
        })}
        {logTicks(low, high).map((value) => <text key={value} class="axis" x={x(value)} y={LINE_HEIGHT - 32} text-anchor="middle">{short(value)}</text>)}
        <text class="axis" x={(LEFT + WIDTH) / 2} y={LINE_HEIGHT - 6} text-anchor="middle">{xLabel}</text>
        <text class="axis" x={0} y={16}>{yLabel}</text>
        {curves.map((curve, index) => (
          <g key={curve.name} class={`line ${curve.class}`}>
            <polyline points={curve.points.map((point) => `${x(point.x)},${y(point.y)}`).join(" ")} />
            {curve.points.map((point) => <Marker key={point.label} shape={MARKERS[index % MARKERS.length]} x={x(point.x)} y={y(point.y)} label={point.label} />)}
            {curve.isNumbered && curve.points.map((point) => <text key={point.label} class="mark-text" x={x(point.x)} y={y(point.y) - 11} text-anchor="middle">{point.mark}</text>)}
          </g>
        ))}
      </svg>
      <figcaption>
        {curves.map((curve, index) => <span key={curve.name} class="legend"><svg class={`line legend-mark ${curve.class}`} viewBox="0 0 14 14" aria-hidden="true"><Marker shape={MARKERS[index % MARKERS.length]} x={7} y={7} label="" /></svg>{curve.name}</span>)}
        {note && <span class="legend-time">{note}</span>}
      </figcaption>
    </figure>
  );
}
