// Charts as plain SVG. Each has a text alternative; colours come from the theme.

import { useState } from "preact/hooks";
import { short } from "./format";

export interface Bar {
  label: string;
  /** Stacked from the bottom, one value for each series. */
  values: number[];
}

const WIDTH = 720;
const HEIGHT = 200;
const LEFT = 56;
const BOTTOM = 32;

function niceMax(value: number): number {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 4, 5, 8, 10].map((step) => step * power).find((step) => step >= value) ?? value;
}

export function BarChart({ title, series, bars, format = short }: {
  title: string;
  series: { name: string; class: string }[];
  bars: Bar[];
  format?: (value: number) => string;
}) {
  const [chosen, setChosen] = useState<number | null>(null);
  const top = niceMax(Math.max(...bars.map((bar) => bar.values.reduce((sum, value) => sum + value, 0)), 0));
  const step = (WIDTH - LEFT) / bars.length;
  const y = (value: number) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - 10);
  const totals = series.map((each, index) => `${each.name}: ${format(bars.reduce((sum, bar) => sum + bar.values[index], 0))}`);
  const current = chosen === null ? null : bars[chosen];
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
        {bars.map((bar, index) =>
          index % Math.ceil(bars.length / 5) === 0 ? (
            <text key={index} class="axis" x={LEFT + index * step} y={HEIGHT - 4}>{bar.label}</text>
          ) : null,
        )}
      </svg>
      <figcaption>
        {series.map((each, index) => (
          <span key={each.name} class="legend"><i class={`dot ${each.class}`} />{each.name}{current && <b>{format(current.values[index])}</b>}</span>
        ))}
        <span class="legend-time">{current ? current.label : ""}</span>
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
  points: { x: number; y: number; label: string }[];
}

/** Lines over a logarithmic x axis, for recall against tokens. */
export function LineChart({ title, curves, xLabel, yLabel }: { title: string; curves: Curve[]; xLabel: string; yLabel: string }) {
  const points = curves.flatMap((curve) => curve.points);
  if (!points.length) return null;
  const height = 300;
  const low = Math.log10(Math.max(1, Math.min(...points.map((point) => point.x))));
  const high = Math.max(low + 0.1, Math.log10(Math.max(...points.map((point) => point.x), 10)));
  const bottom = Math.max(0, Math.floor(Math.min(...points.map((point) => point.y)) * 10) / 10 - 0.1);
  const x = (value: number) => LEFT + ((Math.log10(Math.max(1, value)) - low) / (high - low)) * (WIDTH - LEFT - 16);
  const y = (value: number) => height - 40 - ((value - bottom) / (1 - bottom)) * (height - 60);
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => 10 ** (low + (high - low) * share));
  return (
    <figure class="chart">
      <svg viewBox={`0 0 ${WIDTH} ${height}`} role="img" aria-label={title}>
        {[0, 0.25, 0.5, 0.75, 1].map((share) => {
          const value = bottom + (1 - bottom) * share;
          return (
            <g key={share}>
              <line class="grid" x1={LEFT} x2={WIDTH - 16} y1={y(value)} y2={y(value)} />
              <text class="axis" x={LEFT - 8} y={y(value) + 4} text-anchor="end">{`${Math.round(value * 100)}%`}</text>
            </g>
          );
        })}
        {ticks.map((value) => <text key={value} class="axis" x={x(value)} y={height - 22} text-anchor="middle">{short(value)}</text>)}
        <text class="axis" x={(LEFT + WIDTH) / 2} y={height - 4} text-anchor="middle">{xLabel}</text>
        <text class="axis" x={LEFT} y={12}>{yLabel}</text>
        {curves.map((curve) => (
          <g key={curve.name} class={`line ${curve.class}`}>
            <polyline points={curve.points.map((point) => `${x(point.x)},${y(point.y)}`).join(" ")} />
            {curve.points.map((point) => <circle key={point.label} cx={x(point.x)} cy={y(point.y)} r="3.5"><title>{point.label}</title></circle>)}
          </g>
        ))}
      </svg>
      <figcaption>{curves.map((curve) => <span key={curve.name} class="legend"><i class={`dot ${curve.class}`} />{curve.name}</span>)}</figcaption>
    </figure>
  );
}
