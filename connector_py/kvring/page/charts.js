// Charts of the page: lines over time, with axes, marks where a spike is clipped, and the values under the pointer.
import { clipped, clock, linear, logarithmic, text, times } from "./scales.js";

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 66, RIGHT = 10, TOP = 12, BOTTOM = 20, HEIGHT = 150, LABEL_WIDTH = 58;

function add(parent, name, attributes, content) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (content != null) made.textContent = content;
  parent.append(made);
  return made;
}

/* Returns a line as points [x, value, time]: the largest value of each pixel, and a null where there is a gap. */
function traced(samples, value, x) {
  const points = [];
  let before = null;
  for (const sample of samples) {
    const found = value(sample), at = Math.round(x(sample.time_s));
    const isGap = before && sample.time_s - before.time_s > 1.5 * (sample.over_s ?? 0) + 1;
    before = sample;
    if (isGap) points.push(null);
    const last = points.at(-1);
    if (found == null) { if (last) points.push(null); }
    else if (last && last[0] === at) { if (found > last[1]) points[points.length - 1] = [at, found, sample.time_s]; }
    else points.push([at, found, sample.time_s]);
  }
  return points;
}

function scaleOf(chart, view, values) {
  if (view.isLog && chart.kind !== "ratio" && values.some(value => value > 0)) return logarithmic(chart.kind, values);
  return linear(chart.kind, view.isClipped ? clipped(values) : Math.max(...values, 0));
}

function axes(svg, chart, view, scale, x, y, width) {
  let labelled = Infinity;
  for (const tick of scale.ticks) {
    add(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) });
    if (labelled - y(tick) < 13) continue;
    labelled = y(tick);
    add(svg, "text", { class: "value", x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, text(chart.kind, tick));
  }
  for (const { timeS, label } of times(view.fromS, view.toS, Math.max(Math.floor((width - LEFT) / LABEL_WIDTH), 2))) {
    const at = x(timeS);
    add(svg, "line", { class: "grid", x1: at, x2: at, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 });
    if (at > LEFT + 10 && at < width - 25) add(svg, "text", { class: "time", x: at, y: HEIGHT - 4, "text-anchor": "middle" }, label);
  }
}

function line(svg, points, number, scale, y) {
  let part = [];
  const end = () => {
    if (part.length === 1) add(svg, "circle", { class: "dot" + number, cx: part[0][0], cy: y(part[0][1]), r: 1.5 });
    else if (part.length) add(svg, "polyline", { class: "line" + number, points: part.map(([x, value]) => x + "," + y(value).toFixed(1)).join(" ") });
    part = [];
  };
  for (const point of points) { if (point) part.push(point); else end(); }
  end();
  for (const point of points)
    if (point && point[1] > scale.top) {
      const [x] = point;
      add(svg, "polygon", { class: "mark" + number, points: `${x - 4},${TOP} ${x + 4},${TOP} ${x},${TOP - 8}` });
    }
}

function caption(figure, chart, view, lines, scale, samples) {
  const found = document.createElement("figcaption");
  const shown = view.at ?? samples.at(-1);
  const part = (...content) => { const made = document.createElement("span"); made.append(...content); found.append(made); return made; };
  const strong = content => { const made = document.createElement("b"); made.textContent = content; return made; };
  chart.lines.forEach(([name, value], number) => {
    const key = document.createElement("i");
    key.className = "key" + number;
    part(key, name + " ", strong(text(chart.kind, shown && value(shown))));
  });
  if (view.at) part("at " + clock(view.at.time_s));
  const above = lines.flat().filter(point => point && point[1] > scale.top);
  if (above.length) {
    const [, most, timeS] = above.reduce((one, other) => other[1] > one[1] ? other : one);
    part(`▲ ${above.length} clipped, up to `, strong(text(chart.kind, most)), " at " + clock(timeS)).className = "clipped";
  }
  figure.append(found);
}

/* Draws a chart: its `kind`, and its `lines` as pairs of a name and a function from a sample to a value or null.
   `view` has fromS, toS, isLog, isClipped, and `at`, the sample under the pointer. */
export function draw(figure, chart, samples, view) {
  const width = Math.max(figure.clientWidth, 200);
  const x = timeS => LEFT + (width - LEFT - RIGHT) * (timeS - view.fromS) / (view.toS - view.fromS);
  const lines = chart.lines.map(([, value]) => traced(samples, value, x));
  const scale = scaleOf(chart, view, lines.flat().filter(point => point).map(point => point[1]));
  const y = value => TOP + (HEIGHT - TOP - BOTTOM) * (1 - scale.at(value));
  figure.replaceChildren();
  const svg = add(figure, "svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  axes(svg, chart, view, scale, x, y, width);
  if (view.at) add(svg, "line", { class: "at", x1: x(view.at.time_s), x2: x(view.at.time_s), y1: TOP, y2: HEIGHT - BOTTOM });
  lines.forEach((points, number) => line(svg, points, number, scale, y));
  caption(figure, chart, view, lines, scale, samples);
}

/* Returns which time of a chart a pointer is at. */
export function timeAt(figure, event, view) {
  const box = figure.getBoundingClientRect();
  return view.fromS + (view.toS - view.fromS) * (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
}
