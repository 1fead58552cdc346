"use strict";
// Draws the page from the JSON in #data: charts by uPlot, tables by Tabulator.
// Texts of data only become text nodes, never HTML: Tabulator sets innerHTML for
// titles, entries of lists and prints, so that here it sets text.
Object.defineProperty(Element.prototype, "innerHTML", {
  set(value) { this.textContent = value; },
});

const data = JSON.parse(document.getElementById("data").textContent);
const DASHES = [[], [8, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 4]];
const PRINTED_ROWS = 40;
const charts = new Set();

// ---------------------------------------------------------------- elements

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function color(name) {
  return getComputedStyle(document.documentElement)
    .getPropertyValue(`--${name}`).trim();
}

function groupColor(index) {
  return color(`series-${index % DASHES.length}`);
}

function format(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en");
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return value.toLocaleString("en", {maximumSignificantDigits: 4});
}

// ------------------------------------------------------------------ blocks

const BLOCKS = {
  text: ({text}) => make("p", {}, text),
  facts: ({rows}) => make("dl", {}, ...rows.flatMap(([label, text]) =>
    text ? [make("dt", {}, label), make("dd", {}, text)] : [])),
  table: makeTable,
  bars: makeBars,
  dots: makeDots,
};

function titled(title, ...children) {
  return make("figure", {},
    ...(title ? [make("figcaption", {}, title)] : []), ...children);
}

// ------------------------------------------------------------------ tables

function mark(word, kind) {
  return make("mark", {class: kind, title: kind}, word);
}

const CELLS = {
  number: value => format(value),
  percent: value => value === null ? "–" : `${format(100 * value)} %`,
  marked: (sentence, row) => {
    const [before, ...rest] = sentence.split("[MASK]");
    if (!rest.length) return sentence;
    return make("span", {}, before, mark(row.gold, "gold"), " ",
      mark(row.prediction, "prediction"), rest.join("[MASK]"));
  },
  words: (words, row) => make("span", {}, ...words.flatMap((word, i) =>
    [i ? ", " : "", word === row.prediction ? mark(word, "prediction") : word])),
};
const NUMBERS = new Set(["number", "percent"]);

function makeTable({title, columns, rows}) {
  const fields = columns.map((column, i) =>
    ["gold", "prediction"].includes(column.title) ? column.title : `c${i}`);
  const records = rows.map(cells => {
    const record = {};
    cells.forEach((cell, i) => { record[fields[i]] = cell; });
    record.searched = cells.filter(x => typeof x !== "number")
      .flat().join(" ").toLowerCase();
    return record;
  });
  const isLong = rows.length > 10;
  const holder = make("div");
  const count = make("output", {}, `${rows.length.toLocaleString("en")} rows`);
  const search = make("input", {
    type: "search", placeholder: "Search", "aria-label": `Search ${title}`,
  });
  const figure = titled(title,
    ...(isLong ? [make("div", {class: "tools"}, search, count)] : []), holder);
  whenShown(figure, () => {
    const table = new Tabulator(holder, {
      data: records,
      columns: columns.map((column, i) => ({
        ...makeColumn(column, fields[i], isLong), frozen: !i && innerWidth > 700,
        maxInitialWidth: chooseWidth(column.title, rows.map(cells => cells[i])),
      })),
      layout: columns.length > 3 ? "fitDataFill" : "fitDataStretch",
      height: isLong ? 420 : false,
      renderVertical: isLong ? "virtual" : "basic",
      headerSortElement: () => make("div", {class: "tabulator-arrow"}),
      printAsHtml: true,
      printRowRange: () => table.getRows("active").slice(0, PRINTED_ROWS),
    });
    table.on("tableBuilt", () => {
      makeOperable(holder, title);
      table.redraw(true);  // heights of rows, once the widths are known
    });
    table.on("dataFiltered", (_, kept) => {
      count.textContent = `${kept.length.toLocaleString("en")} rows`;
    });
    search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      table.setFilter(row => words.every(word => row.searched.includes(word)));
    });
  });
  return figure;
}

function makeColumn({title, type}, field, hasFilter) {
  const column = {title, field, sorter: NUMBERS.has(type) ? "number" : "string"};
  const show = CELLS[type];
  column.formatter = cell => {
    const value = cell.getValue(), row = cell.getData();
    const shown = show ? show(value, row) : String(value ?? "");
    if (shown instanceof Node) return shown;
    return make("span", {}, shown);  // text, not HTML
  };
  if (NUMBERS.has(type)) {
    column.hozAlign = column.headerHozAlign = "right";
    column.headerSortStartingDir = "desc";
  } else if (type === "marked" || type === "words") {
    column.headerSort = false;
    column.minWidth = type === "marked" ? 300 : 180;
    column.variableHeight = true;
  }
  if (hasFilter && type === "text") column.headerFilter = "input";
  if (hasFilter && type === "choice") {
    column.headerFilter = "list";
    column.headerFilterParams = {valuesLookup: true, clearable: true};
    column.headerFilterFunc = "=";
  }
  return column;
}

// The width that most cells need, so that a single long one does not decide.
function chooseWidth(title, cells) {
  const lengths = cells.map(cell => String(cell ?? "").length).sort((a, b) => a - b);
  const most = lengths[Math.floor(lengths.length * 0.95)] ?? 0;
  return Math.max(Math.min(most * 8 + 24, 440), title.length * 9 + 44);
}

// Lets the keyboard sort and scroll.
function makeOperable(holder, title) {
  for (const header of holder.querySelectorAll(".tabulator-sortable")) {
    header.tabIndex = 0;
    header.addEventListener("keydown", event => {
      if (event.key === "Enter" && event.target === header) header.click();
    });
  }
  const body = holder.querySelector(".tabulator-tableholder");
  body.tabIndex = 0;
  body.setAttribute("aria-label", `Rows of ${title || "the table"}`);
}

// ------------------------------------------------------------------ charts

function axis(options = {}) {
  return {
    stroke: () => color("text"),
    font: "12px system-ui, sans-serif",
    values: (_, ticks) => ticks.map(tick => tick === null ? "" : format(tick)),
    grid: {stroke: () => color("line"), width: 1},
    ticks: {stroke: () => color("line"), width: 1},
    ...options,
  };
}

function addChart(holder, options, columns) {
  const chart = new uPlot({
    width: Math.max(holder.clientWidth, 200), ...options,
  }, columns, holder);
  chart.root.holder = holder;
  charts.add(chart);
  return chart;
}

function fitCharts() {
  for (const chart of charts) {
    const width = Math.max(chart.root.holder.clientWidth, 200);
    chart.setSize({width, height: chart.height});  // colours are read again
  }
}

addEventListener("resize", fitCharts);
for (const query of ["(prefers-color-scheme: dark)", "print"]) {
  matchMedia(query).addEventListener("change", fitCharts);
}

// A chart whose categories are on the left and values on the bottom.
function addHorizontal(holder, labels, series, columns, range, hooks = {}) {
  const gutter = Math.min(
    Math.max(...labels.map(label => label.length)) * 6.5 + 20,
    holder.clientWidth * 0.5);
  const shorten = label => {
    const size = Math.floor((gutter - 20) / 6.5);
    return label.length > size ? `${label.slice(0, size - 1)}…` : label;
  };
  return addChart(holder, {
    height: labels.length * 20 + 50,
    legend: {show: false},
    cursor: {show: false},
    scales: {
      x: {time: false, ori: 1, dir: -1, range: [-0.6, labels.length - 0.4]},
      y: {ori: 0, range},
    },
    axes: [
      axis({
        side: 3, size: gutter, grid: {show: false},
        splits: () => labels.map((_, i) => i),
        values: () => labels.map(shorten),
      }),
      axis({side: 2, space: 80}),
    ],
    series: [{}, ...series],
    hooks,
  }, [labels.map((_, i) => i), ...columns]);
}

function makeBars({title, rows}) {
  const labels = rows.map(row => row[0]), values = rows.map(row => row[1]);
  const holder = make("div", {
    class: "chart narrow", role: "img",
    "aria-label": rows.map(row => `${row[0]}: ${format(row[1])}`).join("; "),
  });
  const figure = titled(title, holder);
  whenShown(figure, () => addHorizontal(holder, labels, [{
    stroke: () => groupColor(0), fill: () => groupColor(0),
    paths: uPlot.paths.bars({size: [0.7, 40]}), points: {show: false},
  }], [values], [0, Math.max(...values) * 1.05 || 1]));
  return figure;
}

function makeDots({title, unit, groups}) {
  const labels = groups.map(group => group.label);
  const all = groups.flatMap(group =>
    [...group.points, group.low ?? group.points[0], group.high ?? group.points[0]]);
  const pad = (Math.max(...all) - Math.min(...all)) * 0.05 || 1;
  const holder = make("div", {
    class: "chart narrow", role: "img",
    "aria-label": groups.map(group =>
      `${group.label}: ${group.points.map(format).join(", ")}`).join("; "),
  });
  const figure = titled(unit ? `${title} (${unit})` : title, holder);
  const most = Math.max(...groups.map(group => group.points.length));
  const dot = {paths: () => null, points: {
    show: true, size: 9, fill: () => groupColor(0), stroke: () => groupColor(0),
  }};
  const fill = (chart, index, low, high, [width, height], name) => {
    const {ctx} = chart, ratio = devicePixelRatio;
    const [left, right] = [low, high].map(x => chart.valToPos(x, "y", true));
    const w = right - left + width * ratio, h = height * ratio;
    ctx.fillStyle = color(name);
    ctx.fillRect(left - width * ratio / 2,
      chart.valToPos(index, "x", true) - h / 2, w, h);
  };
  whenShown(figure, () => addHorizontal(
    holder, labels, Array(most).fill(dot),
    Array.from({length: most}, (_, k) => groups.map(g => g.points[k] ?? null)),
    [Math.min(...all) - pad, Math.max(...all) + pad],
    {drawAxes: [chart => groups.forEach((group, i) => {
      if (group.median === undefined) return;
      fill(chart, i, group.low, group.high, [0, 2], "series-0");
      fill(chart, i, group.median, group.median, [3, 16], "series-1");
    })]}));
  return figure;
}

// ------------------------------------------------------------------ curves

const AXES = {
  step: {title: "step", get: columns => columns.step},
  tokens: {title: "tokens", get: (columns, curve) => scale(columns.step, curve.tokens)},
  hours: {title: "hours of training", get: columns => columns.hours},
  flops: {title: "FLOPs", get: (columns, curve) => scale(columns.step, curve.flops)},
};

function scale(values, factor) {
  return factor ? values.map(value => value * factor) : undefined;
}

// Exponential moving average; `weight` is that of the past.
function smooth(values, weight) {
  let mean = null;
  return values.map(value => {
    if (value === null) return null;
    mean = mean === null ? value : weight * mean + (1 - weight) * value;
    return mean;
  });
}

function makeCurves(runs) {
  const curves = runs.flatMap(run => run.curves);
  const groups = [...new Set(curves.map(curve => curve.group))];
  const fields = Object.keys(data.panels).filter(field =>
    curves.some(curve => Object.values(curve.splits).some(columns =>
      columns[field]?.some(value => value !== null))));
  if (!fields.length) return null;
  const state = {x: "step", logX: false, logY: false, weight: 0};
  const grid = make("div", {class: "grid"});
  const panels = fields.map(field => {
    const [title, , unit] = data.panels[field];
    const holder = make("div", {class: "chart"});
    grid.append(titled(unit ? `${title} (${unit})` : title, holder));
    return {field, holder, chart: null};
  });
  const draw = () => panels.forEach(panel =>
    drawPanel(panel, curves, groups, state));
  const select = make("select", {onchange: event => {
    state.x = event.target.value;
    draw();
  }}, ...Object.entries(AXES).filter(([, option]) =>
    curves.some(curve => Object.values(curve.splits).some(columns =>
      option.get(columns, curve)))).map(([name, option]) =>
    make("option", {value: name}, option.title)));
  const check = (name, label) => make("label", {}, make("input", {
    type: "checkbox",
    onchange: event => { state[name] = event.target.checked; draw(); },
  }), ` ${label}`);
  const tools = make("div", {class: "tools"},
    make("label", {}, "against ", select),
    check("logX", "log x"), check("logY", "log y"),
    make("label", {}, "smoothing ", make("input", {
      type: "range", min: 0, max: 0.98, step: 0.02, value: 0,
      oninput: event => { state.weight = Number(event.target.value); draw(); },
    })),
    make("button", {type: "button", onclick: draw}, "reset zoom"));
  const legend = make("ul", {class: "legend"}, ...groups.map((group, i) =>
    make("li", {}, make("span", {class: `key series-${i % DASHES.length}`}),
      group)));
  const section = makeSection("Curves", make("p", {class: "hint"},
    "Lines are training, dots are held-out rows or dev sets. Drag to zoom,"
    + " double-click to reset."),
  tools, ...(groups.length > 1 ? [legend] : []), grid);
  whenShown(section, draw);
  return section;
}

function drawPanel(panel, curves, groups, state) {
  const {field, holder} = panel;
  const tables = [], series = [];
  const add = (xs, ys, options) => {
    if (!xs || !ys?.some(y => y !== null)) return;
    const points = xs.map((x, i) => [x, ys[i]]).filter(([x, y]) =>
      (x > 0 || !state.logX) && x !== null && (y > 0 || y === null || !state.logY));
    if (!points.length) return;
    tables.push([points.map(p => p[0]), points.map(p => p[1])]);
    series.push({
      scale: "y", spanGaps: true, value: (_, value) => format(value), ...options});
  };
  for (const curve of curves) {
    const index = groups.indexOf(curve.group);
    const stroke = () => groupColor(index);
    for (const [split, columns] of Object.entries(curve.splits)) {
      const values = columns[field], xs = AXES[state.x].get(columns, curve);
      if (!values) continue;
      const isTrain = split === "train";
      const name = curve.label && `${curve.label}, `;
      const isDot = !isTrain || values.length === 1;
      add(xs, isTrain ? smooth(values, state.weight) : values, {
        label: name + (isTrain ? "train" : split.replace("_", "-")),
        stroke, width: 1.5, dash: DASHES[index % DASHES.length],
        ...(isDot ? {paths: () => null, points: {
          show: true, size: 7, fill: stroke, stroke,
        }} : {points: {show: false}}),
      });
    }
  }
  const ends = [Infinity, -Infinity];
  for (const [xs] of tables) {
    ends[0] = Math.min(ends[0], xs[0]);
    ends[1] = Math.max(ends[1], xs.at(-1));
  }
  for (const [label, value] of Object.entries(curves[0].references[field] ?? {})) {
    if (tables.length) add(ends, [value, value], {
      label, stroke: () => color("text"), width: 1, dash: [2, 4],
      points: {show: false},
    });
  }
  if (panel.chart) {
    charts.delete(panel.chart);
    panel.chart.destroy();
  }
  panel.chart = null;
  if (!tables.length) return;
  panel.chart = addChart(holder, {
    height: 220,
    series: [{label: AXES[state.x].title, value: (_, x) => format(x)}, ...series],
    cursor: {sync: {key: "curves", setSeries: false}, focus: {prox: 30}},
    focus: {alpha: 0.5},
    legend: {live: true},
    scales: {
      x: {
        time: false, distr: state.logX ? 3 : 1,
        range: (_, min, max) => [min, max > min ? max : min + 1],
      },
      y: {distr: state.logY ? 3 : 1},
    },
    axes: [
      axis({size: 36}),
      axis({size: 62}),
    ],
  }, uPlot.join(tables));
  panel.chart.root.setAttribute("role", "img");
  panel.chart.root.setAttribute("aria-label",
    `${data.panels[field][0]}: ${series.length} lines. Values follow.`);
}

// -------------------------------------------------------------------- page

const links = [];

function makeSection(title, ...children) {
  const id = `section-${links.length}`;
  links.push([id, title]);
  return make("section", {id}, make("h2", {}, title), ...children);
}

// Draws what is near the window, and everything before printing.
const pending = new Map();
const observer = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) drawNow(entry.target);
}, {rootMargin: "400px"});

function whenShown(element, draw) {
  pending.set(element, draw);
  observer.observe(element);
}

function drawNow(element) {
  observer.unobserve(element);
  const draw = pending.get(element);
  pending.delete(element);
  if (draw) draw();
}

addEventListener("beforeprint", () => [...pending.keys()].forEach(drawNow));

function makeGlance(run) {
  const state = make("span", {class: `state ${run.state}`}, run.state);
  return make("article", {},
    make("h3", {}, run.name, " ", make("small", {}, run.task), " ",
      ...(run.state ? [state] : [])),
    make("p", {class: "sentence"}, run.sentence),
    make("ul", {class: "notes"}, ...run.notes.map(([level, text]) =>
      make("li", {class: level}, make("strong", {}, `${level}: `), text))),
    BLOCKS.facts({rows: [...Object.entries(run.facts), ["folder", run.path]]}),
    make("details", {}, make("summary", {}, "Config"),
      BLOCKS.facts({rows: run.config.map(([key, value]) =>
        [key, JSON.stringify(value)])})));
}

function drawPage() {
  const {runs, compared} = data, main = document.getElementById("main");
  main.append(makeSection("At a glance",
    make("div", {class: "glance"}, ...runs.map(makeGlance))));
  if (compared) main.append(makeSection("Compared", makeTable(compared)));
  main.append(...[makeCurves(runs)].filter(Boolean));
  for (const run of runs) {
    for (const {title, blocks} of run.sections) {
      const name = runs.length > 1 ? `${run.name}: ${title}` : title;
      main.append(makeSection(name,
        ...blocks.map(block => BLOCKS[block.kind](block))));
    }
  }
  document.getElementById("top").append(
    make("h1", {}, runs.map(run => run.name).join(", ")),
    make("nav", {"aria-label": "Sections"}, ...links.map(([id, title]) =>
      make("a", {href: `#${id}`}, title))));
  document.getElementById("foot").append(
    `Written ${data.date} by truenegs_jax ${data.version}. Charts: uPlot;`
    + " tables: Tabulator (both MIT licence).");
}

drawPage();
