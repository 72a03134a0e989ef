// Scales of the charts: where a value stands, which ones are labelled, and how values and times are written.
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const TIME_STEPS_S = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800];
// What is further below the largest value than this is at the bottom of a logarithmic scale.
const MOST_DECADES = 6;
// Where the smallest labelled value is if 0 is below it.
const ABOVE_ZERO = 0.15;
// Of fewer values none is a spike.
const LEAST_CLIPPED = 20;
// The top of a scale of nothing but 0.
const LEAST_TOP = { bytes: 1024, ms: 1, count: 1 };

const plain = (value, digits) => value.toLocaleString("en", { maximumSignificantDigits: digits });

/* Writes a size. */
export function size(bytes) {
  let unit = 0;
  for (; Math.abs(bytes) >= 1023.5 && unit < BYTES.length - 1; unit++) bytes /= 1024;
  return plain(bytes, bytes < 1000 ? 3 : 4) + " " + BYTES[unit];
}

const written = {
  bytes: value => size(value) + "/s",
  ms: value => value < 1000 ? plain(value, 3) + " ms" : plain(value / 1000, 3) + " s",
  count: value => plain(value, 3) + "/s",
  ratio: value => plain(100 * value, 3) + " %",
};

/* Writes a value of that kind: "bytes", "ms", "count" or "ratio"; a dash if there is none. */
export const text = (kind, value) => value == null ? "–" : written[kind](value);

/* Writes a time of day of this browser. */
export function clock(timeS, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return new Date(1000 * timeS).toLocaleTimeString("en", withSeconds ? { ...options, second: "2-digit" } : options);
}

/* Writes how long something took, in its two largest units. */
export function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = Math.max(units.findIndex(([, length]) => seconds >= length), 0);
  if (seconds < 1) return "0 s";
  return units.slice(first, first + 2)
    .map(([name, length], at) => [Math.floor((at ? seconds % units[first][1] : seconds) / length), name])
    .filter(([count]) => count)
    .map(part => part.join(" ")).join(" ");
}

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return [1, 2, 5, 10].map(times => times * power).find(one => one >= step * 0.999);
}

/* Returns a scale from 0: `top`, `ticks`, and `at`, which maps a value to 0..1. */
export function linear(kind, most) {
  if (kind === "ratio") return { top: 1, ticks: [0, 0.25, 0.5, 0.75, 1], at: value => Math.min(value, 1) };
  const unit = kind === "bytes" ? 1024 ** Math.max(Math.floor(Math.log(Math.max(most, 1)) / Math.log(1024)), 0) : 1;
  const step = nice((most || LEAST_TOP[kind]) / unit / 4) * unit;
  const count = Math.ceil((most || LEAST_TOP[kind]) / step - 1e-9);
  const ticks = Array.from({ length: count + 1 }, (_, number) => number * step);
  return { top: ticks[count], ticks, at: value => Math.min(value / ticks[count], 1) };
}

/* Returns a logarithmic scale; 0 is at its bottom if it is among the values. */
export function logarithmic(kind, values) {
  const base = kind === "bytes" ? 32 : 10, log = value => Math.log(value) / Math.log(base);
  const high = Math.ceil(log(Math.max(...values)) - 1e-9);
  const least = Math.floor(log(Math.min(...values.filter(value => value > 0))) + 1e-9);
  const low = Math.min(Math.max(least, high - MOST_DECADES), high - 1);
  const steps = base === 10 && high - low < 3 ? [1, 2, 5] : [1];
  const powers = Array.from({ length: high - low }, (_, number) => base ** (low + number));
  const ticks = [...powers.flatMap(power => steps.map(step => step * power)), base ** high];
  const bottom = values.some(value => value <= 0) ? ABOVE_ZERO : 0;
  return {
    top: base ** high, ticks: bottom ? [0, ...ticks] : ticks,
    at: value => value > 0 ? bottom + (1 - bottom) * Math.min(Math.max((log(value) - low) / (high - low), 0), 1) : 0,
  };
}

/* Returns times to label, at most so many. */
export function times(fromS, toS, most) {
  const step = TIME_STEPS_S.find(one => (toS - fromS) / one <= most) ?? TIME_STEPS_S.at(-1);
  const first = Math.ceil(fromS / step) * step;
  const found = Array.from({ length: Math.floor((toS - first) / step) + 1 }, (_, number) => first + number * step);
  return found.map(timeS => ({ timeS, label: clock(timeS, step < 60) }));
}

/* Returns below which value a scale ends that few spikes shall not flatten; the largest one if it is near.
   Failures are mostly 0, which says nothing of how large the others are. */
export function clipped(values) {
  const sorted = values.filter(value => value > 0).toSorted((one, other) => one - other);
  const dropped = Math.max(2, Math.ceil(sorted.length / 50));
  const most = sorted.at(-1) ?? 0, usual = sorted[sorted.length - 1 - dropped];
  return sorted.length >= LEAST_CLIPPED && usual > 0 && most > 2 * usual ? usual * 1.1 : most;
}
