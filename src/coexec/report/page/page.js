"use strict";
// Draws the page from the data in it. Texts of the model are set as text, never as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const tip = document.getElementById("tip");
const colourOf = place => data.colours[place] || "#999999";

// --- Elements and texts

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function svgElement(name, attributes = {}, text = null) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

function time(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const steps = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
  const [unit, name] = steps.find(([size]) => seconds >= size) || [1e-9, "ns"];
  return `${(seconds / unit).toPrecision(3)} ${name}`;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  const steps = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
  const [unit, name] = steps.find(([step]) => bytes >= step) || [1, "B"];
  return `${(bytes / unit).toPrecision(3)} ${name}`;
}

const percent = share => `${Math.round(100 * share)} %`;

function section(id, title, note) {
  const heading = element("h2", {}, title);
  const node = element("section", { id, "aria-label": title }, heading);
  if (note) node.append(element("p", { class: "quiet" }, note));
  main.append(node);
  document.getElementById("contents").append(element("a", { href: `#${id}` }, title), " ");
  return node;
}

function button(text, act) {
  const node = element("button", { type: "button" }, text);
  node.addEventListener("click", () => act(node));
  return node;
}

function legend(entries) {
  const node = element("div", { class: "legend" });
  for (const [text, colour] of entries) {
    const square = element("i");
    square.style.background = colour;
    node.append(element("span", {}, square, text));
  }
  return node;
}

const placeLegend = () => legend(data.places.map(place => [place, colourOf(place)]));

// --- The tooltip

function show(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 4))}px`;
  tip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 8) : y + 16}px`;
}

function addTooltip(node, text) {
  node.addEventListener("pointermove", event => show(text, event.clientX, event.clientY));
  node.addEventListener("pointerleave", () => { tip.hidden = true; });
}

// --- Tables that can be sorted

// A column: {title, of: row => value, text: value => string}; numbers are sorted as numbers.
function table(columns, rows, mark = () => {}) {
  const body = element("tbody");
  const built = rows.map(row => {
    const line = element("tr");
    for (const column of columns) {
      const value = column.of(row);
      const isNumber = column.text !== undefined;
      const cell = element("td", { class: isNumber ? "number" : column.form || "name" });
      cell.textContent = isNumber ? column.text(value) : value ?? "";
      line.append(cell);
    }
    mark(line, row);
    return [row, line];
  });
  const head = element("tr");
  columns.forEach(column => {
    const cell = element("th", { scope: "col", "aria-sort": "none" });
    cell.append(button(column.title, () => {
      const isDown = cell.getAttribute("aria-sort") === "descending";
      for (const other of head.children) other.setAttribute("aria-sort", "none");
      cell.setAttribute("aria-sort", isDown ? "ascending" : "descending");
      built.sort(([a], [b]) => compare(column.of(a), column.of(b)) * (isDown ? 1 : -1));
      body.append(...built.map(([, line]) => line));
    }));
    head.append(cell);
  });
  body.append(...built.map(([, line]) => line));
  return element("div", { class: "wide tall", tabindex: "0" },
    element("table", {}, element("thead", {}, head), body));
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

// --- The search: each part of the page says what it shows, and how it marks a match

const searched = [];

function search() {
  const word = document.getElementById("search").value.trim().toLowerCase();
  let count = 0;
  for (const { text, nodes, isTask } of searched) {
    const isMatch = word !== "" && text.includes(word);
    for (const node of nodes) node.classList.toggle("match", isMatch);
    if (isMatch && isTask) count += 1;
  }
  const matches = document.getElementById("matches");
  matches.textContent = word === "" ? "" : `${count} of ${data.tasks.length} ${data.tasks.length === data.nodes.length ? "tasks" : "pieces"}`;
  const first = document.querySelector("#tasks tr.match");
  if (first) first.parentNode.prepend(...document.querySelectorAll("#tasks tr.match"));
}

function findable(texts, nodes, isTask = false) {
  searched.push({ text: texts.join("\n").toLowerCase(), nodes, isTask });
}

// --- Sections

function drawHead() {
  document.getElementById("search").addEventListener("input", search);
  document.getElementById("theme").addEventListener("click", () => {
    const isDark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = isDark ? "light" : "dark";
  });
}

function drawRivals() {
  if (!data.rivals.length) return;
  const isChoice = data.rivals.some(row => row.status);
  const node = section("rivals", isChoice ? "What auto considered" : "Side by side",
    (isChoice ? "Each configuration of devices and engines, and the rule that took it or left it out. " :
      "The plan, each device alone, and ONNX Runtime on the same cores. ") +
    "All measured ways answered requests in turns, in one race. Share: of ONNX Runtime's time.");
  const texts = { paced_s: "30 requests a second", loop_s: "one request after the other" };
  const figures = Object.keys(texts).filter(figure => data.rivals.some(row => row[figure] !== null));
  const chart = element("div");
  const choose = element("div", { class: "bar" });
  const draw = figure => {
    const rows = data.rivals.filter(row => row[figure] !== null);
    const longest = Math.max(...rows.map(row => row[figure]));
    const room = roomIn(node), label = Math.min(330, room / 2.4);
    const svg = svgElement("svg", { width: room, height: 26 * rows.length, role: "img",
      "aria-label": `Median time, ${texts[figure]}` });
    rows.forEach((row, index) => {
      const width = (room - label - 70) * row[figure] / longest;
      const bar = svgElement("rect", { x: label, y: 26 * index + 4, width, height: 17,
        fill: row.is_plan ? "#d55e00" : row.is_base ? "#999999" : "#56b4e9" });
      addTooltip(bar, `${row.name}\n${time(row[figure])} a request, ${texts[figure]}\n` +
        `${row.share.toFixed(2)} of ONNX Runtime's time`);
      svg.append(svgElement("text", { x: label - 8, y: 26 * index + 17, "text-anchor": "end" },
        fitted(row.name, label - 12)), bar, svgElement("text", { x: label + 6 + width, y: 26 * index + 17 }, time(row[figure])));
    });
    chart.replaceChildren(element("div", { class: "wide" }, svg));
    for (const each of choose.children) each.setAttribute("aria-pressed", each.dataset.figure === figure);
  };
  for (const figure of figures) {
    const each = button(texts[figure], () => draw(figure));
    each.dataset.figure = figure;
    choose.append(each);
  }
  const lines = table([
    { title: "way to run it", of: row => row.same_as ? `${row.name} = ${row.same_as}` : row.name },
    { title: "status", of: row => row.status === "untried" ? "not tried" : row.status, form: "short" },
    { title: "share", of: row => row.share, text: value => value === null ? "" : value.toFixed(2) },
    { title: "reason", of: row => row.reason, form: "long" },
    { title: "at 30 a second", of: row => row.paced_s, text: time },
    { title: "in a loop", of: row => row.loop_s, text: time },
    { title: "requests a second", of: row => row.requests === "parallel" ? row.requests_per_s : null, text: value => value === null ? "" : value.toFixed(1) },
    { title: "predicted", of: row => row.predicted_s, text: time },
    { title: "start", of: row => row.init_s, text: time },
    { title: "peak memory", of: row => row.peak_bytes, text: size },
  ].filter(column => data.rivals.some(row => column.of(row))), data.rivals,
  (line, row) => line.classList.toggle("first", row.is_plan));
  lines.classList.remove("tall");  // the reasons are read without scrolling
  node.append(choose, chart, lines);
  for (const [name, reason] of Object.entries(data.left_out))
    node.append(element("p", { class: "quiet" }, `Left out: ${name} alone: ${reason}`));
  if (figures.length) draw(figures[0]);
}

function drawTimelines() {
  const kinds = [["predicted", data.predicted], ["measured", data.measured]].filter(([, line]) => line);
  if (!kinds.length) return;
  const node = section("timeline", "What ran where and when",
    "For each device the simulation above the recorded run, of three the one of middle length. " +
    "Red outlines: the critical path. " +
    "Arrow keys move from block to block, + and - zoom.");
  const end = Math.max(...kinds.map(([, line]) => line.makespan_s)) || 1e-9;
  const devices = [...new Set(kinds.flatMap(([, line]) => Object.keys(line.utilisation)))];
  const rows = devices.flatMap(device => kinds.map(([kind, line]) => ({ device, kind, line })))
    .filter(({ device, line }) => device in line.utilisation);
  const label = innerWidth < 640 ? 130 : 190, height = 26;
  const scroller = element("div", { class: "wide", tabindex: "0", id: "gantt",
    role: "application", "aria-label": "Timeline; arrow keys move from block to block" });
  let zoom = 1, blocks = [], chosen = null;
  const draw = () => {
    const width = Math.max(150, (node.clientWidth || 900) - label - 50) * zoom;
    const svg = svgElement("svg", { width: width + label + 20, height: rows.length * height + 34 });
    const x = seconds => label + width * seconds / end;
    drawTicks(svg, x, end, Math.min(40, Math.max(2, Math.round(width / 120))), rows.length * height + 24);
    blocks = [];
    searched.splice(0, searched.length, ...searched.filter(each => !each.isBlock));
    rows.forEach(({ device, kind, line }, index) => {
      const y = 22 + index * height;
      svg.append(svgElement("text", { x: 2, y: y + 15 },
        fitted(`${shortened(device, 14)} ${kind} ${percent(line.utilisation[device])}`, label - 8)));
      line.blocks.filter(block => block.device === device).forEach(block => {
        const rect = blockOf(block, kind, device, x, y, height);
        svg.append(rect);
        blocks.push({ row: index, block, rect, text: blockText(block, kind) });
        searched.push({ text: [block.name, block.tensor, ...block.tasks].join("\n").toLowerCase(),
          nodes: [rect], isTask: false, isBlock: true });
      });
    });
    scroller.replaceChildren(svg);
    chosen = null;
    search();
  };
  const choose = next => {
    if (!next) return;
    if (chosen) chosen.rect.classList.remove("chosen");
    chosen = next;
    chosen.rect.classList.add("chosen");
    chosen.rect.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = chosen.rect.getBoundingClientRect();
    show(chosen.text, box.left, box.bottom - 10);
  };
  const move = key => {
    if (!chosen) return choose(blocks[0]);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (step) {
      const own = blocks.filter(each => each.row === chosen.row);
      return choose(own[own.indexOf(chosen) + step]);
    }
    const row = chosen.row + (key === "ArrowDown" ? 1 : -1);
    const others = blocks.filter(each => each.row === row);
    choose(others.find(each => each.block.end_s > chosen.block.start_s) || others.at(-1));
  };
  const scale = factor => { zoom = Math.min(64, Math.max(1, zoom * factor)); draw(); };
  scroller.addEventListener("keydown", event => {
    if (event.key.startsWith("Arrow")) { move(event.key); event.preventDefault(); }
    if (event.key === "+" || event.key === "-") scale(event.key === "+" ? 2 : 0.5);
    if (event.key === "Escape") tip.hidden = true;
  });
  scroller.addEventListener("blur", () => { tip.hidden = true; });
  node.append(element("div", { class: "bar" }, button("Zoom in", () => scale(2)),
    button("Zoom out", () => scale(0.5))),
    legend([...data.places.map(place => [place, colourOf(place)]), ["copying", "var(--copy)"],
      ["waiting", "var(--wait)"], ["critical path", "var(--strong)"]]), scroller,
    ...data.kernels.map(text => element("p", { class: "quiet" }, text)));
  draw();
  let pending = 0;
  addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(draw, 150); });
}

function drawTicks(svg, x, end, count, bottom) {
  for (let tick = 0; tick <= count; tick++) {
    const at = end * tick / count;
    const place = tick < count ? { x: x(at) + 2 } : { x: x(at), "text-anchor": "end" };
    svg.append(svgElement("line", { class: "axis", x1: x(at), x2: x(at), y1: 18, y2: bottom }),
      svgElement("text", { class: "faint", y: 13, ...place }, `${(1e3 * at).toPrecision(3)} ms`));
  }
}

function blockOf(block, kind, device, x, y, height) {
  const classes = ["block", block.kind, block.is_critical && block.kind !== "wait" ? "critical" : ""];
  const inset = block.kind === "wait" ? 8 : block.kind === "layout" ? 6 : block.kind === "kernel" ? 3 : 0;
  const rect = svgElement("rect", { class: classes.join(" "), x: x(block.start_s), y: y + inset,
    width: Math.max(1, x(block.end_s) - x(block.start_s)), height: height - 6 - 2 * inset });
  if (block.kind === "compute") rect.setAttribute("fill", colourOf(`${device}/${block.engine}`));
  addTooltip(rect, blockText(block, kind));
  return rect;
}

function blockText(block, kind) {
  const lines = [`${block.name} (${block.kind}, ${kind})`,
    `${time(block.end_s - block.start_s)}, from ${time(block.start_s)} to ${time(block.end_s)}`];
  if (block.engine) lines.push(`${block.device}/${block.engine}`);
  if (block.size_bytes) lines.push(`${size(block.size_bytes)} of ${block.tensor}`);
  if (block.tasks.length) {
    const known = block.tasks.slice(0, 8).map(name => {
      const row = taskRows.get(name);
      return row ? `${name}: ${row.kind}, ${row.shape}` : name;
    });
    lines.push(...known);
    if (block.tasks.length > 8) lines.push(`and ${block.tasks.length - 8} more tasks`);
  }
  return lines.join("\n");
}

// The boxes of the graph: a task each, and one for each of the repeats that are closed.
function boxesOf(closed) {
  const repeatOf = row => closed.find(each => each.row <= row && row < each.row + each.length * each.count);
  const boxes = [], boxOf = [];
  const boxOfRepeat = new Map();
  for (const task of data.nodes) {
    const repeat = repeatOf(task.row);
    let box = boxOfRepeat.get(repeat);
    if (!box || !repeat) {
      box = { repeat, tasks: [], row: task.row - closed.filter(each => each.row < task.row && each !== repeat)
        .reduce((sum, each) => sum + each.length * each.count - 1, 0) - (repeat ? task.row - repeat.row : 0) };
      boxes.push(box);
      if (repeat) boxOfRepeat.set(repeat, box);
    }
    box.tasks.push(task);
    boxOf.push(box);
  }
  for (const box of boxes) {
    const sum = of => box.tasks.reduce((total, task) => total + of(task), 0);
    box.column = sum(task => task.column) / box.tasks.length;
    box.seconds = sum(task => task.predicted_s);
    box.isCritical = box.tasks.some(task => task.is_critical);
    const weight = task => box.seconds ? task.predicted_s / box.seconds : 1 / box.tasks.length;
    const places = [...new Set(box.tasks.flatMap(task => Object.keys(task.places)))];
    box.places = places.map(place => [place, sum(task => weight(task) * (task.places[place] || 0))]);
    box.title = box.repeat ? `${box.repeat.count} times ${sequenceOf(box)}` : box.tasks[0].kind;
  }
  return { boxes, boxOf };
}

// The operators of a repeat: its rows, and the tasks of a row from left to right.
function sequenceOf({ repeat, tasks }) {
  const rows = Array.from({ length: repeat.length }, () => []);
  for (const task of [...tasks].sort((a, b) => a.column - b.column))
    if (task.row < repeat.row + repeat.length) rows[task.row - repeat.row].push(task.kind);
  return rows.map(kinds => kinds.join(" | ")).join(", ");
}

function drawGraph() {
  if (!data.nodes.length) return;
  const node = section("graph", "The graph",
    "Each task by its place or by its time; a task that several places divide has the colours of " +
    "all. Red: the critical path of the simulation. A click shows the task in the table." +
    (data.repeats.length ? " Rows that repeat are one box, with their number; a click opens it." : ""));
  const wide = 150, high = 44, rise = 24;
  const scroller = element("div", { class: "wide tall", tabindex: "0", id: "drawing" });
  let zoom = 1, byTime = false, closed = data.repeats;
  const widthOf = box => box.repeat ? Math.min(396, 40 + penWidth(box.title)) : 132;
  const draw = () => {
    const { boxes, boxOf } = boxesOf(closed);
    const longest = Math.max(...boxes.map(box => box.seconds)) || 1;
    const left = Math.min(...boxes.map(box => box.column * wide - widthOf(box) / 2)) - 10;
    const right = Math.max(...boxes.map(box => box.column * wide + widthOf(box) / 2)) + 10;
    const centre = box => box.column * wide - left, y = box => box.row * high + 10;
    const width = right - left, height = Math.max(...boxes.map(y)) + rise + 10;
    const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, width: width * zoom, height: height * zoom,
      role: "img", "aria-label": "Graph of tasks" });
    const drawn = new Map(boxes.map(box => [box, new Set()]));
    for (const [from, to] of data.edges.map(edge => edge.map(index => boxOf[index]))) {
      if (from === to || drawn.get(from).has(to)) continue;
      drawn.get(from).add(to);
      svg.append(edgeOf(from, to, centre(from), y(from) + rise, centre(to), y(to)));
    }
    searched.splice(0, searched.length, ...searched.filter(each => !each.isNode));
    for (const box of boxes) {
      const group = svgElement("g", box.repeat ? { class: "fold" } : {});
      const start = centre(box) - widthOf(box) / 2;
      const heat = Math.round(100 * Math.sqrt(box.seconds / longest));
      let x = start;
      for (const [place, share] of byTime ? [["", 1]] : box.places) {
        group.append(svgElement("rect", { x, y: y(box), width: widthOf(box) * share, height: rise,
          fill: byTime ? `color-mix(in srgb, #d55e00 ${heat}%, var(--back))` : colourOf(place) }));
        x += widthOf(box) * share;
      }
      const frame = svgElement("rect", { class: box.isCritical ? "node critical" : "node", fill: "none",
        x: start, y: y(box), width: widthOf(box), height: rise, rx: 3 });
      const words = svgElement("text", { x: start + 5, y: y(box) + 16 }, fitted(box.title, widthOf(box) - 10));
      if (!byTime) words.style.fill = "#111";
      group.append(frame, words);
      const places = box.places.map(([place, share]) => `${place} ${percent(share)}`);
      addTooltip(group, `${box.repeat ? `${box.tasks.length} tasks` : box.tasks[0].name}\n${box.title}\n` +
        `${places.join(", ")}\n${time(box.seconds)} predicted`);
      group.addEventListener("click", () => box.repeat ? open(box.repeat) : reveal(box.tasks[0].name));
      svg.append(group);
      searched.push({ text: box.tasks.map(task => task.name).join("\n").toLowerCase(), nodes: [frame],
        isTask: false, isNode: true });
    }
    scroller.replaceChildren(svg);
    search();
    return -left * zoom;
  };
  const open = repeat => { closed = closed.filter(each => each !== repeat); tip.hidden = true; draw(); };
  const scale = factor => { zoom = Math.min(4, Math.max(0.1, zoom * factor)); draw(); };
  const toggle = button("Colour by time", self => {
    byTime = !byTime;
    self.textContent = byTime ? "Colour by place" : "Colour by time";
    draw();
  });
  const fold = button("Open or fold repeats", () => { closed = closed.length ? [] : data.repeats; draw(); });
  node.append(element("div", { class: "bar" }, button("Zoom in", () => scale(1.5)),
    button("Zoom out", () => scale(1 / 1.5)), toggle, ...(data.repeats.length ? [fold] : [])),
    placeLegend(), scroller);
  scroller.scrollLeft = draw() - (scroller.clientWidth || 0) / 2;
}

function edgeOf(from, to, x1, y1, x2, y2) {
  return svgElement("path", { class: from.isCritical && to.isCritical ? "edge critical" : "edge",
    d: `M${x1} ${y1}C${x1} ${y1 + 14} ${x2} ${y2 - 14} ${x2} ${y2}` });
}

function reveal(name) {
  const line = taskLines.get(name);
  if (!line) return;
  for (const other of document.querySelectorAll("tr.chosen")) other.classList.remove("chosen");
  line.classList.add("chosen");
  line.scrollIntoView({ block: "center" });
}

function drawAlternatives() {
  const columns = [
    { title: "predicted", of: row => row.predicted_s, text: time },
    { title: "over this plan", of: row => row.predicted_s === null ? null : row.predicted_s / data.predicted.makespan_s,
      text: value => value === null ? "" : value.toFixed(2) },
    { title: "planning took", of: row => row.planning_s, text: time },
    { title: "status", of: row => row.status, form: "long" },
  ];
  if (data.planners.length) {
    const node = section("planners", "Planners",
      "Plans of all planners for the same devices and costs, simulated.");
    const rows = data.planners.filter(row => row.predicted_s !== null);
    const longest = Math.max(...rows.map(row => row.predicted_s), data.bound_s || 0);
    const room = roomIn(node), label = 110;
    const svg = svgElement("svg", { width: room, height: 24 * rows.length + 18, role: "img",
      "aria-label": "Simulated time by planner" });
    [...rows].sort((a, b) => a.predicted_s - b.predicted_s).forEach((row, index) => {
      const width = (room - label - 70) * row.predicted_s / longest;
      const bar = svgElement("rect", { x: label, y: 24 * index + 3, width, height: 16,
        fill: row.name === data.facts.planner ? "#d55e00" : "#56b4e9" });
      addTooltip(bar, `${row.name}: ${time(row.predicted_s)}, planned in ${time(row.planning_s)}`);
      svg.append(svgElement("text", { x: label - 8, y: 24 * index + 15, "text-anchor": "end" }, row.name), bar,
        svgElement("text", { x: label + 6 + width, y: 24 * index + 15 }, time(row.predicted_s)));
    });
    if (data.bound_s) {
      const at = label + (room - label - 70) * data.bound_s / longest;
      svg.append(svgElement("line", { x1: at, x2: at, y1: 0, y2: 24 * rows.length, stroke: "var(--strong)",
        "stroke-dasharray": "4 3" }), svgElement("text", { x: at + 3, y: 24 * rows.length + 12 }, "lower bound"));
    }
    node.append(element("div", { class: "wide" }, svg));
    if (data.bound) node.append(element("p", { class: "quiet" }, `Lower bound: ${data.bound}.`));
    node.append(table([{ title: "planner", of: row => row.name }, ...columns], data.planners));
  }
  if (data.without.length) {
    const node = section("without", "Without a device",
      "The plan that the same planner would make if the device were not there, simulated.");
    node.append(table([{ title: "without", of: row => row.name }, ...columns], data.without));
  }
}

function drawMemory() {
  const node = section("memory", "Transfers and memory", null);
  if (data.transfers.length) {
    node.append(table([
      { title: "tensor", of: row => row.tensor },
      { title: "from", of: row => row.source },
      { title: "to", of: row => row.target },
      { title: "bytes", of: row => row.size_bytes, text: size },
    ], data.transfers, (line, row) => findable([row.tensor], [line])));
  } else node.append(element("p", {}, "No tensor is read across places."));
  node.append(element("p", { class: "quiet" },
    `Intermediate tensors need at least ${size(data.least_intermediate_bytes)} if tasks run in order.`),
  table([
    { title: "place", of: row => row.place },
    { title: "tasks", of: row => row.task_count, text: String },
    { title: "weights", of: row => row.weight_bytes, text: size },
    { title: "largest task", of: row => row.largest_task_bytes, text: size },
  ], data.memory));
}

const taskLines = new Map();
const taskRows = new Map(data.tasks.map(row => [row.task, row]));

function drawTasks() {
  if (!data.tasks.length) return;
  const node = section("tasks", "Every task",
    "Its time at each place, and why it is where it is. A red edge: on the critical path." +
    (data.tasks.length === data.nodes.length ? "" :
      ` ${data.nodes.length} tasks are divided into ${data.tasks.length} pieces, a row each.`));
  node.append(table([
    { title: "task", of: row => row.name },
    { title: "operators", of: row => row.kind },
    { title: "place", of: row => row.place },
    { title: "predicted", of: row => row.predicted_s, text: time },
    { title: "measured alone", of: row => row.measured_s, text: time },
    ...data.places.map(place => ({ title: place, of: row => row.elsewhere_s[place],
      text: value => value === null ? "cannot" : time(value) })),
    { title: "reads from elsewhere", of: row => row.moved_bytes, text: value => value ? size(value) : "" },
    { title: "output", of: row => row.shape },
    { title: "reason", of: row => row.group },
    { title: "figures", of: row => row.why, form: "long" },
  ], data.tasks, (line, row) => {
    if (row.is_critical && data.places.length > 1) line.classList.add("critical");
    if (!taskLines.has(row.task)) taskLines.set(row.task, line);
    findable([row.name, row.kind], [line], true);
  }));
}

function drawFacts() {
  const node = section("facts", "How this was made", null);
  const rows = Object.entries({ model: data.model, ...data.facts });
  const list = element("table");
  for (const [name, text] of rows)
    list.append(element("tr", {}, element("th", { scope: "row" }, name), element("td", { class: "name" }, text)));
  node.append(element("div", { class: "wide" }, list));
}

const roomIn = node => Math.max(260, Math.min(760, node.clientWidth - 24));

// Pixels of a text in the font of figures.
function penWidth(text) {
  const pen = penWidth.pen ||= document.createElement("canvas").getContext("2d");
  pen.font = "11px system-ui, sans-serif";
  return pen.measureText(text).width;
}

// The text, shortened until it is no wider than a number of pixels.
function fitted(text, pixels) {
  let most = text.length;
  while (most > 1 && penWidth(shortened(text, most)) > pixels) most -= 1;
  return shortened(text, most);
}

const shortened = (text, most) => text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text;

drawHead();
drawRivals();
drawTimelines();
drawGraph();
drawAlternatives();
drawMemory();
drawTasks();
drawFacts();
