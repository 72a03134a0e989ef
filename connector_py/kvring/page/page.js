// The page: asks for samples again and again, and shows them.
import { draw, timeAt } from "./charts.js";
import { clock, duration, size, text } from "./scales.js";

const KEPT_S = 3600, LEAST_RANGE_S = 60;
const element = id => document.getElementById(id);
const count = value => value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 });

const latency = op => ["total p99", "device p99", "wait p99", "total p50"].map(name =>
  [name.replace("device", "drive"), sample => sample[op + "_" + name.replace(" ", "_")]]);
const failing = ["loads", "stores", "syncs"].map(of => [of, sample => sample["failed_" + of + "_per_s"]]);
const CHARTS = {
  bytes: { kind: "bytes", lines: [["read", sample => sample.read_bytes_per_s], ["written", sample => sample.written_bytes_per_s]] },
  hits: { kind: "ratio", lines: [["now", sample => sample.lookup_hit_ratio], ["with twice the capacity", sample => sample.hit_ratio_at_2x]] },
  loads: { kind: "ms", lines: latency("get") },
  saves: { kind: "ms", lines: latency("set") },
  failed: { kind: "count", lines: failing },
};

let samples = [], last = null, reasons = [], answer = null, answeredMs = performance.now(), updatedMs = answeredMs, lost = null, pointerS = null, view = null;
// Those of the range.
let shown = [];

/* What is chosen is kept in the address, so that it can be sent to others. */
const chosen = () => new URLSearchParams(location.hash.slice(1));
function choose(name, value) {
  const all = chosen();
  all.set(name, value);
  history.replaceState(null, "", "#" + all);
}
const range = () => chosen().get("range") === "3600" ? 3600 : 600;

/* Returns how often each reason came since the sample before. */
const newFailures = (sample, before) => sample.failures.map((number, at) => {
  const more = before ? number - before.failures[at] : 0;
  // Less than before: the store was opened anew, and counts from nothing.
  return more < 0 ? number : more;
});

function take(found) {
  answeredMs = performance.now();
  // A store that is not open any more has nothing that is newer.
  if (!found.series) { answer = { ...answer, ...found }; return; }
  if (answer?.series !== found.series) samples = [];
  answer = found;
  if (!found.last) return;
  last = found.last;
  updatedMs = answeredMs - 1000 * found.age_s;
  reasons = Object.keys(last.failures);
  for (const row of found.samples) {
    const sample = Object.fromEntries(found.columns.map((name, at) => [name, row[at]]));
    sample.newFailures = newFailures(sample, samples.at(-1));
    samples.push(sample);
  }
  const oldest = (samples.at(-1)?.time_s ?? 0) - KEPT_S;
  samples = samples.filter(sample => sample.time_s >= oldest);
}

/* Makes a name that breaks only behind / and @, whatever characters are in it. */
function named(name) {
  const made = document.createElement("span");
  made.className = "name";
  made.title = name;
  for (const part of name.split(/(?<=[/@])/)) {
    const own = document.createElement("bdi");
    own.textContent = part;
    made.append(own, document.createElement("wbr"));
  }
  return made;
}
function row(table, ...cells) {
  const line = table.insertRow();
  cells.forEach((cell, at) => {
    const made = line.insertCell();
    made.append(cell);
    if (at) made.className = "number";
  });
  return line;
}
function meter(parent, name, share, ...figures) {
  const made = document.createElement("div"), bar = document.createElement("div"), part = document.createElement("div"), below = document.createElement("div");
  made.className = "meter"; bar.className = "bar"; below.className = "figures";
  part.style.width = Math.min(100, 100 * share) + "%";
  bar.append(part);
  below.append(...figures.map(figure => { const own = document.createElement("span"); own.append(figure); return own; }));
  made.append(named(name), bar, below);
  parent.append(made);
  return made;
}

function showPaths() {
  for (const path of last.paths) {
    const state = path.in_use ? path.trouble || path.note || "well" : path.reason;
    const made = meter(element("paths"), path.path, path.used_bytes / Math.max(path.capacity_bytes, 1), size(path.used_bytes) + " of " + size(path.capacity_bytes), state);
    if (!path.in_use || path.trouble) made.querySelector(".figures span:last-child").className = "bad";
  }
}
function showFailures() {
  const head = row(element("failures"), "reason", "in " + duration(range()), "since open");
  for (const cell of head.cells) cell.classList.add("dim");
  reasons.forEach((reason, at) => {
    const recent = shown.reduce((sum, sample) => sum + sample.newFailures[at], 0);
    const line = row(element("failures"), reason, count(recent), count(last.failures[reason].since_open));
    if (recent) line.cells[1].classList.add("bad");
  });
}
function showCapacity() {
  const asked = shown.filter(sample => sample.lookups_per_s && sample.over_s);
  const weight = asked.reduce((sum, sample) => sum + sample.lookups_per_s * sample.over_s, 0);
  for (const [name, column] of [["as it is", "lookup_hit_ratio"], ["with 1.5 times the capacity", "hit_ratio_at_1_5x"], ["with twice the capacity", "hit_ratio_at_2x"]]) {
    const mean = weight ? asked.reduce((sum, sample) => sum + sample[column] * sample.lookups_per_s * sample.over_s, 0) / weight : null;
    meter(element("capacity"), name, mean ?? 0, text("ratio", mean) + " of lookups hit");
  }
}
function showTables() {
  for (const id of ["failures", "paths", "namespaces", "capacity", "now"]) element(id).replaceChildren();
  showPaths();
  showFailures();
  showCapacity();
  for (const one of last.namespaces)
    meter(element("namespaces"), one.name || "(keys not of LMCache's form)", one.allocated_bytes / Math.max(last.space.allocated_bytes, 1), size(one.allocated_bytes), count(one.keys) + " chunks");
  for (const [name, value] of [
    ["chunks", count(last.space.keys)], ["loads", text("count", last.loads_per_s)], ["stores", text("count", last.stores_per_s)],
    ["lookups", text("count", last.lookups_per_s)], ["evictions", text("count", last.evictions_per_s)],
    ["in flight", count(last.in_flight)], ["waiting to be stored", size(last.store_queue_bytes)], ["leased", size(last.space.leased_bytes)], ["pinned", size(last.space.pinned_bytes)]])
    row(element("now"), name, value);
}

/* Says how the store is, and how old that is. */
function showState() {
  const state = element("state");
  const sinceS = ms => (performance.now() - ms) / 1000, ageS = sinceS(updatedMs);
  const trouble = last?.paths.filter(path => !path.in_use || path.trouble).map(path => path.path + ": " + (path.in_use ? path.trouble : path.reason));
  const old = last ? "; what is below is old" : "";
  const bad = lost ? "no answer from " + location.host + " for " + duration(sinceS(answeredMs)) + ": the process that served it has ended, or hangs" + old
    : answer?.failure ? answer.failure + old
      : answer && ageS > 3 * answer.interval_s + 2 ? "stale: the owner has told nothing for " + duration(ageS)
        : trouble?.length ? trouble.join("; ") : "";
  const failed = Math.round(shown.reduce((sum, sample) => failing.reduce((all, [, rate]) => all + (rate(sample) ?? 0) * (sample.over_s ?? 0), sum), 0));
  const well = failed ? "well, but " + count(failed) + (failed === 1 ? " failure in " : " failures in ") + duration(range()) : "well";
  const told = bad || (last ? well : "waiting for the store");
  // Programs that read it aloud do so when it is set.
  if (state.textContent !== told) state.textContent = told;
  state.className = bad ? "bad" : failed ? "warning" : "";
  if (!last) return;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  element("facts").replaceChildren(...[
    "host " + last.host, "process " + last.process_id, "up " + duration(last.open_s),
    "last update " + clock(last.time_s) + " " + zone + ", " + duration(ageS) + " ago", "kvring " + last.version, last.engine,
  ].map(fact => { const made = document.createElement("span"); made.textContent = fact; return made; }));
}
function showChoices() {
  const all = chosen(), stores = answer?.stores ?? [];
  element("range").value = String(range());
  element("scale").value = all.get("scale") === "log" ? "log" : "linear";
  element("clip").checked = all.get("clip") !== "off";
  element("stores-label").hidden = stores.length < 2;
  if (document.activeElement !== element("stores"))
    element("stores").replaceChildren(...stores.map(name => new Option(name, name, false, name === answer.store)));
}
function show() {
  showChoices();
  const toS = samples.at(-1)?.time_s;
  const fromS = toS - Math.min(range(), Math.max(toS - samples[0]?.time_s, LEAST_RANGE_S));
  shown = samples.filter(sample => sample.time_s >= fromS && sample.time_s <= toS);
  showState();
  if (!shown.length) return;
  element("store").replaceChildren(...last.paths.flatMap(path => [named(path.path), " "]));
  const at = pointerS && shown.reduce((best, one) => Math.abs(one.time_s - pointerS) < Math.abs(best.time_s - pointerS) ? one : best);
  view = { fromS, toS, isLog: chosen().get("scale") === "log", isClipped: chosen().get("clip") !== "off", at };
  for (const [id, chart] of Object.entries(CHARTS)) draw(element(id), chart, shown, view);
  showTables();
}

async function look() {
  const asked = new URLSearchParams({ series: answer?.series ?? "", after: answer?.next ?? 0 });
  if (chosen().has("store")) asked.set("store", chosen().get("store"));
  try {
    const response = await fetch("frames?" + asked, { signal: AbortSignal.timeout(10000) });
    if (!response.ok) throw new Error(response.statusText);
    take(await response.json());
    lost = null;
  } catch (error) { lost = error; }
  show();
  setTimeout(look, Math.min(Math.max(500 * (answer?.interval_s ?? 1), 500), 2000));
}

for (const id of ["range", "scale", "stores"])
  element(id).addEventListener("change", event => { choose(id === "stores" ? "store" : id, event.target.value); show(); });
element("clip").addEventListener("change", event => { choose("clip", event.target.checked ? "on" : "off"); show(); });
for (const id of Object.keys(CHARTS)) {
  element(id).addEventListener("pointermove", event => { if (view) { pointerS = timeAt(element(id), event, view); show(); } });
  element(id).addEventListener("pointerleave", () => { pointerS = null; show(); });
}
addEventListener("resize", show);
addEventListener("hashchange", show);
setInterval(showState, 1000);
look();
