"use strict";
// Draws the page from the JSON in #data: curves by uPlot, long tables by
// Tabulator. Both have fixed heights, so that links land on their headings.
// Texts of data only become text nodes, never HTML: Tabulator sets innerHTML for
// titles, entries of lists and prints, so that here it sets text.
Object.defineProperty(Element.prototype, "innerHTML", {
  set(value) { this.textContent = value; },
});

const data = JSON.parse(document.getElementById("data").textContent);
const DASHES = [[], [8, 3], [3, 2], [8, 3, 2, 3], [12, 4], [4, 4]];
const DOTTED = [1, 3];  // of references
const PRINTED_ROWS = 40;
const MANY = 8;  // curves, whose values are shown by group
const SHORT = 25;  // rows that need no search
const HEIGHT = 420;  // of a longer table
const charts = new Set();
const draws = [];  // functions to call once their elements have a width

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
  return `series-${index % DASHES.length}`;
}

function groupDash(index) {
  return DASHES[index % DASHES.length];
}

// A piece of a line, as it is in the charts.
function makeKey(name, dash) {
  let end = 0;
  const stops = dash.map((length, i) =>
    `${i % 2 ? "transparent" : `var(--${name})`} ${end}px ${end += length}px`);
  return make("span", {class: "key", style: "background: " + (dash.length
    ? `repeating-linear-gradient(90deg, ${stops.join()})` : `var(--${name})`)});
}

// ----------------------------------------------------------------- numbers

function findUnit(size) {
  const power = size < 1e6 ? 0 : Math.min(Math.floor(Math.log10(size) / 3), 6);
  return [1000 ** power, ["", "", " M", " G", " T", " P", " E"][power]];
}

function format(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en");
  if (size < 1e-5) return value.toExponential(2);
  const [unit, suffix] = findUnit(size);
  return (value / unit).toLocaleString("en", {maximumSignificantDigits: 4})
    + suffix;
}

// Ticks of an axis, all with one unit and, unless it is logarithmic, with
// equally many digits.
function formatTicks(ticks, isLog = false) {
  const sizes = ticks.filter(Boolean).map(Math.abs);
  if (Math.min(...sizes) < 1e-5) {
    return ticks.map(tick => tick ? tick.toExponential() : tick === 0 ? "0" : "");
  }
  const [unit, suffix] = findUnit(Math.max(...sizes));
  const round = tick => Number((tick / unit).toPrecision(10));
  const digits = Math.max(0, ...ticks.map(tick =>
    String(round(tick)).split(".")[1]?.length ?? 0));
  return ticks.map(tick => tick === null ? "" : tick === 0 ? "0"
    : round(tick).toLocaleString("en", {
      minimumFractionDigits: isLog ? 0 : digits, maximumFractionDigits: digits,
    }) + suffix);
}

// Round numbers between both.
function makeTicks(low, high) {
  const least = (high - low) / 5, power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map(x => x * power).find(x => x >= least);
  const first = Math.ceil(low / step), last = Math.floor(high / step);
  return Array.from({length: last - first + 1}, (_, i) => (first + i) * step);
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

function makeTable(block) {
  return block.rows.length > SHORT ? makeLong(block) : makeShort(block);
}

function show(value, {type}, row) {
  return CELLS[type] ? CELLS[type](value, row) : String(value ?? "");
}

function makeRecord(columns, cells) {
  return Object.fromEntries(columns.map(({title}, i) => [title, cells[i]]));
}

function makeShort({title, columns, rows}) {
  const attributes = ({type}, cell = "") => ({class: NUMBERS.has(type) ? "number"
    : String(cell).length > 20 && "long"});
  return titled(title, make("div", {
    class: "scroll", tabindex: 0, role: "region", "aria-label": title || "Table",
  }, make("table", {},
    make("thead", {}, make("tr", {}, ...columns.map(column =>
      make("th", {scope: "col", ...attributes(column)}, column.title)))),
    make("tbody", {}, ...rows.map(cells =>
      make("tr", {}, ...columns.map((column, i) =>
        make("td", attributes(column, cells[i]),
          show(cells[i], column, makeRecord(columns, cells)))))))
  )));
}

function makeLong({title, columns, rows}) {
  const records = rows.map(cells => ({
    ...makeRecord(columns, cells), searched: cells.filter(cell =>
      typeof cell !== "number").flat().join(" ").toLowerCase(),
  }));
  const holder = make("div", {style: `height: ${HEIGHT}px`});
  const count = make("output", {}, `${rows.length.toLocaleString("en")} rows`);
  const search = make("input", {
    type: "search", placeholder: "Search", "aria-label": `Search ${title}`,
  });
  const tools = make("div", {class: "tools"}, search, count);
  draws.push(() => {
    const table = new Tabulator(holder, {
      data: records,
      columns: columns.map((column, i) => ({
        ...makeColumn(column), frozen: !i && innerWidth > 700, maxInitialWidth: 440,
      })),
      nestedFieldSeparator: false,
      layout: columns.length > 3 ? "fitDataFill" : "fitDataStretch",
      height: HEIGHT,
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
  return titled(title, tools, holder);
}

function makeColumn({title, type}) {
  const sorter = NUMBERS.has(type) ? "number" : "string";
  const column = {title, field: title, sorter};
  column.formatter = cell =>  // text, not HTML
    make("span", {}, show(cell.getValue(), {type}, cell.getData()));
  if (NUMBERS.has(type)) {
    column.hozAlign = column.headerHozAlign = "right";
    column.headerSortStartingDir = "desc";
  } else if (type === "marked" || type === "words") {
    column.headerSort = false;
    column.minWidth = type === "marked" ? 300 : 180;
    column.variableHeight = true;
  }
  if (type === "text") column.headerFilter = "input";
  if (type === "choice") {
    column.headerFilter = "list";
    column.headerFilterParams = {valuesLookup: true, clearable: true};
    column.headerFilterFunc = "=";
  }
  return column;
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

function fitCharts() {
  for (const chart of charts) {
    const width = chart.root.parentNode.clientWidth;
    chart.setSize({width, height: chart.height});  // colours are read again
  }
}

addEventListener("resize", fitCharts);
for (const query of ["(prefers-color-scheme: dark)", "print"]) {
  matchMedia(query).addEventListener("change", fitCharts);
}

function makeBars({title, rows}) {
  const most = Math.max(...rows.map(row => row[1])) || 1;
  return titled(title, make("dl", {class: "bars"}, ...rows.flatMap(row => [
    make("dt", {}, row[0]),
    make("dd", {}, make("span", {
      class: "bar", style: `width: ${85 * row[1] / most}%`,
    }), format(row[1])),
  ])));
}

function makeDots({title, unit, groups}) {
  const all = groups.flatMap(({points, low, high}) =>
    [...points, low ?? points[0], high ?? points[0]]);
  const caption = unit ? `${title} (${unit})` : title;
  const [least, most] = [Math.min(...all), Math.max(...all)];
  if (least === most) {
    const names = groups.map(group => group.label).join(", ");
    return titled(caption, make("p", {}, `Always ${format(least)}: ${names}.`));
  }
  const pad = (most - least) * 0.05, size = most - least + 2 * pad;
  const place = x => 100 * (x - least + pad) / size;
  const put = (name, x, ...children) =>
    make("span", {class: name, style: `left: ${place(x)}%`}, ...children);
  const ticks = makeTicks(least - pad, most + pad);
  const texts = formatTicks(ticks);
  return titled(caption, make("dl", {class: "bars dots"},
    ...groups.flatMap(({label, points, median, low, high}) => [
      make("dt", {}, label),
      make("dd", {},
        ...ticks.map(tick => put("tick", tick)),
        ...(median === undefined ? [] : [
          make("span", {
            class: "interval",
            style: `left: ${place(low)}%; width: ${place(high) - place(low)}%`,
          }),
          put("median", median)]),
        ...points.map(point => put("dot", point))),
      make("dd", {class: "number"}, format(median ?? points[0])),
    ]),
    make("dt"), make("dd", {}, ...ticks.map((tick, i) => put("", tick, texts[i])))));
}

// ------------------------------------------------------------------ curves

const AXES = {
  step: {title: "step", get: columns => columns.step},
  tokens: {title: "tokens", get: (columns, {tokens}) =>
    tokens && columns.step.map(step => step * tokens)},
  hours: {title: "hours of training", get: columns => columns.hours},
  flops: {title: "FLOPs", get: (columns, {flops}) =>
    flops && columns.step.map(step => step * flops)},
};

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
  const curves = runs.flatMap(run =>
    run.curves.map(curve => ({name: curve.label || run.name, ...curve})));
  const groups = [...new Set(curves.map(curve => curve.group))];
  for (const curve of curves) curve.index = groups.indexOf(curve.group);
  const panels = Object.keys(data.panels).map(field => makePanel(field, curves))
    .filter(panel => panel.lines.length);
  if (!panels.length) return null;
  const state = {x: "step", logX: false, logY: false, weight: 0, hidden: new Set()};
  const draw = () => panels.forEach(panel => panel.holder && drawPanel(panel, state));
  const hide = i => event => {
    const isShown = state.hidden.delete(i) || !state.hidden.add(i);
    event.currentTarget.setAttribute("aria-pressed", isShown);
    draw();
  };
  const legend = groups.length < 2 ? [] : groups.map((group, i) => make("button", {
    type: "button", class: "group", "aria-pressed": true, onclick: hide(i),
  }, makeKey(groupColor(i), groupDash(i)), group));
  const grids = [true, false].map(hasChart => make("div", {class: "grid"},
    ...panels.filter(panel => Boolean(panel.holder) === hasChart)
      .map(panel => panel.figure)));
  const section = makeSection("Curves", make("p", {class: "hint"},
    "Lines are training, dots are held-out rows or dev sets. Below a chart are"
    + " the values at the pointer, or the last ones. Drag to zoom, double-click"
    + ` to reset.${legend.length ? " A click on a name hides its curves." : ""}`),
  makeTools(curves, state, draw), make("div", {class: "tools"}, ...legend), ...grids);
  draws.push(draw);
  return section;
}

function makeTools(curves, state, draw) {
  const change = (name, read) => event => {
    state[name] = read(event.target);
    draw();
  };
  const select = make("select", {onchange: change("x", input => input.value)},
    ...Object.entries(AXES).filter(([, option]) =>
      curves.some(curve => Object.values(curve.splits).some(columns =>
        option.get(columns, curve)))).map(([name, option]) =>
      make("option", {value: name}, option.title)));
  const check = (name, label) => make("label", {}, make("input", {
    type: "checkbox", onchange: change(name, input => input.checked),
  }), label);
  return make("div", {class: "tools"},
    make("label", {}, "against", select),
    check("logX", "log x"), check("logY", "log y"),
    make("label", {}, "smoothing", make("input", {
      type: "range", min: 0, max: 0.98, step: 0.02, value: 0,
      oninput: change("weight", input => Number(input.value)),
    })),
    make("button", {type: "button", onclick: draw}, "reset zoom"));
}

// A figure of one field: its chart, if any value changes, and its values.
function makePanel(field, allCurves) {
  const lines = allCurves.flatMap(curve => Object.entries(curve.splits).map(
    ([split, columns]) => ({curve, split, columns, values: columns[field] ?? []})))
    .filter(({values}) => values.some(Number.isFinite));
  const panel = {lines, references: listReferences(field, lines)};
  const title = data.panels[field];
  const count = values => new Set(values.filter(Number.isFinite)).size;
  let values = makeValues(panel, allCurves.length > MANY);
  if (lines.some(line => count(line.values) > 1)) {
    panel.holder = make("div", {class: "chart", role: "img", "aria-label":
      `${title}: ${lines.length} lines. Values follow.`});
  } else if (count(lines.flatMap(line => line.values)) === 1
    && lines.some(line => line.values.filter(Number.isFinite).length > 1)
    && !panel.references.length) {
    values = make("p", {}, `Always ${lines[0].cell.textContent}.`);
  }
  panel.figure = titled(title,
    ...(panel.holder ? [panel.holder] : []), values);
  return panel;
}

// Values to compare with, of a run only where runs differ.
function listReferences(field, lines) {
  const byLabel = new Map();
  for (const {name, index, references} of new Set(lines.map(line => line.curve))) {
    for (const [label, value] of Object.entries(references[field] ?? {})) {
      const kept = byLabel.get(label) ?? [];
      if (kept.some(other => format(other.value) === format(value))) continue;
      kept.push({label, value, owner: `, ${name}`, tone: groupColor(index)});
      byLabel.set(label, kept);
    }
  }
  return [...byLabel.values()].flatMap(kept =>
    kept.length > 1 ? kept : [{...kept[0], owner: "", tone: "text"}]);
}

// A table with a row for each curve, or for the median of each of many groups.
// Cells keep their size, whatever they show.
function makeValues(panel, isGrouped) {
  const {lines, references} = panel;
  const splits = [...new Set(lines.map(line => line.split))].sort().reverse();
  const name = (key, dash, text) =>
    make("th", {scope: "row"}, makeKey(key, dash), text);
  const rows = new Map();
  for (const line of lines) {
    const {index, group, name} = line.curve, key = isGrouped ? group : name;
    if (!rows.has(key)) rows.set(key, {index, cells: {}, members: new Set()});
    const row = rows.get(key);
    row.members.add(name);
    line.cell = row.cells[line.split] ??= make("td");
  }
  panel.head = make("th", {}, "last");
  showMedians(lines.map(({cell, values}) => [cell, values.findLast(Number.isFinite)]));
  return make("table", {class: "values"},
    make("thead", {}, make("tr", {}, panel.head, ...splits.map(split =>
      make("th", {scope: "col"},
        (split === "train" ? "" : "● ") + split.replace("_", "-"))))),
    make("tbody", {}, ...[...rows].map(([key, {index, cells, members}]) =>
      make("tr", {}, name(groupColor(index), groupDash(index),
        members.size > 1 ? `${key}, median of ${members.size}` : key),
      ...splits.map(split => cells[split] ?? make("td")))),
    ...references.map(reference => make("tr", {},
      name(reference.tone, DOTTED, reference.label + reference.owner),
      make("td", {}, format(reference.value))))));
}

// Writes the median of each cell's values.
function showMedians(pairs) {
  for (const cell of new Set(pairs.map(pair => pair[0]))) {
    const values = pairs.filter(pair => pair[0] === cell && Number.isFinite(pair[1]))
      .map(pair => pair[1]).sort((a, b) => a - b);
    const middle = [values.length - 1, values.length].map(x => values[x >> 1]);
    cell.textContent = format(values.length ? (middle[0] + middle[1]) / 2 : null);
  }
}

function drawPanel(panel, state) {
  if (panel.chart) {
    charts.delete(panel.chart);
    panel.chart.destroy();
  }
  const tables = [], series = [], cells = [];
  const add = (xs, ys, options) => {
    tables.push([xs, ys]);
    series.push({scale: "y", spanGaps: true, points: {show: false}, ...options});
  };
  for (const {curve, split, columns, values, cell} of panel.lines) {
    const stroke = () => color(groupColor(curve.index)), isTrain = split === "train";
    const xs = !state.hidden.has(curve.index) && AXES[state.x].get(columns, curve);
    const ys = isTrain ? smooth(values, state.weight) : values;
    const points = (xs || []).map((x, i) => [x, ys[i]]).filter(([x, y]) =>
      (x > 0 || !state.logX) && x !== null && (y > 0 || y === null || !state.logY));
    cell.textContent = format(null);
    if (!points.length) continue;
    cells.push(cell);
    add(points.map(p => p[0]), points.map(p => p[1]), {
      label: `${curve.name}, ${split}`, stroke, width: 1.5,
      dash: groupDash(curve.index),
      ...(!isTrain || values.length === 1) && {
        paths: () => null, points: {show: true, size: 7, fill: stroke, stroke},
      },
    });
  }
  panel.chart = null;
  if (!tables.length) return;
  const xs = tables.flatMap(([xs]) => [xs[0], xs.at(-1)]);
  for (const {label, value, tone} of panel.references) {
    add([Math.min(...xs), Math.max(...xs)], [value, value],
      {label, stroke: () => color(tone), width: 1, dash: DOTTED});
  }
  const showValues = ({data: [xs, ...columns], cursor: {idx}}) => {
    const end = idx ?? xs.length - 1;
    panel.head.textContent = idx === end ? `${state.x} ${format(xs[idx])}` : "last";
    showMedians(cells.map((cell, i) => [cell, columns[i].findLast((value, at) =>
      at <= end && Number.isFinite(value))]));
  };
  const names = panel.references.map(({label}) =>
    make("span", {class: "reference"}, label));
  panel.chart = makeChart(panel.holder, uPlot.join(tables), series, state, {
    ready: [showValues, chart => chart.over.append(...names)],
    setCursor: [showValues],
    draw: [chart => names.reduce((places, name, i) => {
      const y = chart.valToPos(panel.references[i].value, "y");
      name.hidden = !(y >= 0 && y <= chart.over.clientHeight)
        || places.some(place => Math.abs(place - y) < 14);  // the table names it
      name.style.top = `max(1.4em, ${y}px)`;  // below a line at the very top
      return name.hidden ? places : [...places, y];
    }, [])],
  });
  charts.add(panel.chart);
}

function makeChart(holder, columns, series, {logX, logY}, hooks) {
  const axis = (size, isLog) => ({
    size: (_, texts) =>  // the values' at first without, then with their texts
      size ?? Math.max(0, ...(texts ?? []).map(text => text.length)) * 7 + 20,
    stroke: () => color("text"),
    font: "12px system-ui, sans-serif",
    values: (_, ticks) => formatTicks(ticks, isLog),
    grid: {stroke: () => color("line"), width: 1},
    ticks: {stroke: () => color("line"), width: 1},
  });
  return new uPlot({
    width: holder.clientWidth, height: holder.clientHeight,
    series: [{}, ...series],
    cursor: {
      sync: {key: "curves", setSeries: false}, focus: {prox: 30},
      dataIdx: (_, i, index) => series[i - 1]?.dash === DOTTED ? null : index,
    },
    focus: {alpha: 0.5},
    legend: {show: false},
    scales: {
      x: {time: false, distr: logX ? 3 : 1, ...!logX && {
        range: (_, min, max) => [min, max > min ? max : min + 1],
      }},
      y: {distr: logY ? 3 : 1},
    },
    axes: [axis(36, logX), axis(undefined, logY)],
    hooks,
  }, columns, holder);
}

// -------------------------------------------------------------------- page

const links = [];

function makeSection(title, ...children) {
  const id = `section-${links.length}`;
  links.push([id, title]);
  return make("section", {id}, make("h2", {}, title), ...children);
}

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
  if (compared.length) main.append(makeSection("Compared",
    ...compared.map(block => BLOCKS[block.kind](block))));
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
for (const draw of draws) draw();
