"use strict";
// Draws the curves in #data with uPlot. All else of the page needs no script.
const {curves, hasLegend} = JSON.parse(document.getElementById("data").textContent);
const groups = [...new Set(curves.map(curve => curve.group))];
const form = document.getElementById("tools"), charts = new Map();
const DASHES = [[], [8, 3], [3, 2], [8, 3, 2, 3], [12, 4], [4, 4]];
const AXES = {
  step: columns => columns.step,
  tokens: (columns, {tokens}) => tokens && columns.step.map(x => x * tokens),
  hours: columns => columns.hours,
  FLOPs: (columns, {flops}) => flops && columns.step.map(x => x * flops),
};
const color = name => getComputedStyle(form).getPropertyValue(`--${name}`).trim();
function format(value) {
  if (!Number.isFinite(value)) return "–";
  if (value && Math.abs(value) < 1e-5) return value.toExponential(2);
  const digits = Number.isInteger(value) ? 21 : 4;
  return value.toLocaleString("en", {maximumSignificantDigits: digits});
}

// The ticks of an axis, all with the same number of decimals.
function formatTicks(ticks) {
  const sizes = ticks.filter(Boolean).map(Math.abs), most = Math.max(...sizes);
  if (Math.min(...sizes) < 1e-5) return ticks.map(x => x?.toExponential() ?? "");
  const digits = Math.max(...ticks.map(x =>
    `${Number(x?.toPrecision(6))}`.split(".")[1]?.length ?? 0));
  const how = most >= 1e6 ? {notation: "compact", maximumSignificantDigits: 4}
    : {minimumFractionDigits: digits, maximumFractionDigits: digits};
  return ticks.map(x => x === null ? "" : x ? x.toLocaleString("en", how) : "0");
}

// An exponential moving average; `weight` is that of the past.
function smooth(values, weight) {
  let mean = null;
  return values.map(x => x === null ? null
    : mean = mean === null ? x : weight * mean + (1 - weight) * x);
}

// The points and the style of one line, or null.
function makeLine(curve, split, columns, field) {
  const isTrain = split === "train", {x, logX, logY, weight} = form;
  const xs = columns[field] && AXES[x.value](columns, curve);
  if (!xs) return null;
  const ys = isTrain ? smooth(columns[field], Number(weight.value)) : columns[field];
  const points = xs.map((x, i) => [x, ys[i]]).filter(([x, y]) =>
    x !== null && (x > 0 || !logX.checked) && (y > 0 || y === null || !logY.checked));
  const index = groups.indexOf(curve.group) % DASHES.length;
  const stroke = () => color(`series-${index}`);
  const dots = {paths: () => null, points: {show: true, size: 7, fill: stroke}};
  const label = `${isTrain ? "" : "● "}${curve.label}, ${split.replace("_", "-")}`;
  return points.length ? {points: [0, 1].map(i => points.map(p => p[i])), series: {
    label, stroke, width: 1.5, dash: DASHES[index],
    points: {show: false}, ...(!isTrain || points.length === 1) && dots}} : null;
}

// Dotted lines of values to compare with, each once.
function makeReferences(field, lines) {
  const ends = lines.flatMap(({points: [xs]}) => [xs[0], xs.at(-1)]);
  const xs = [Math.min(...ends), Math.max(...ends)], stroke = () => color("text");
  const named = new Map(curves.flatMap(curve =>
    Object.entries(curve.references[field] ?? {})).map(x => [String(x), x]));
  return [...named.values()].map(([label, value]) => ({points: [xs, [value, value]],
    series: {label, stroke, dash: [1, 3], points: {show: false}}}));
}

function drawChart(holder) {
  charts.get(holder)?.destroy();
  const kind = dash => !dash?.length ? "solid" : dash[0] < 4 ? "dotted" : "dashed";
  const {field} = holder.dataset, list = Object.entries;
  const lines = curves.flatMap(x => list(x.splits).map(([split, columns]) =>
    makeLine(x, split, columns, field))).filter(Boolean);
  if (lines.length) lines.push(...makeReferences(field, lines));
  const value = (chart, _, i, at) =>  // at the pointer, or the last one
    format(chart.data[i].findLast((y, j) => y != null && j <= (at ?? Infinity)));
  const [distrX, distrY] = [form.logX, form.logY].map(x => x.checked ? 3 : 1);
  const thin = {stroke: () => color("line"), width: 1};
  const fit = (_, texts) => 7 * Math.max(0, ...(texts ?? []).map(x => x.length)) + 20;
  const axis = size => ({size, font: "12px system-ui, sans-serif", grid: thin,
    stroke: () => color("text"), ticks: thin, values: (_, ticks) => formatTicks(ticks)});
  charts.set(holder, new uPlot({
    width: holder.clientWidth, height: 220, axes: [axis(36), axis(fit)],
    series: [{label: form.x.value, value}, ...lines.map(({series}) =>
      ({spanGaps: true, value, ...series}))],
    scales: {x: {time: false, distr: distrX}, y: {distr: distrY}},
    cursor: {sync: {key: "curves", setSeries: false}},
    legend: {show: hasLegend, markers: {dash: (_, i) => kind(lines[i - 1]?.series.dash)}},
  }, lines.length ? uPlot.join(lines.map(({points}) => points)) : [[]], holder));
}

const draw = () => document.querySelectorAll(".chart").forEach(drawChart);
if (document.querySelector(".chart")) {
  document.querySelector(".grid").before(form);
  form.hidden = false;
  form.addEventListener("input", draw);
  form.addEventListener("reset", () => setTimeout(draw));
  addEventListener("resize", draw);
  for (const query of ["(prefers-color-scheme: dark)", "print"])
    matchMedia(query).addEventListener("change", draw);
  draw();
}
