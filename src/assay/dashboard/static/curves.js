// Draws the curve figures of a page live, in place of their SVG. A figure is drawn only while it is visible.
// All figures of a page show the same steps in equally wide columns; the zoom stands in the page's address.

const COLUMN = { steps: 0, minimum: 1, maximum: 2, last: 3, nan: 4, high: 5, low: 6, lostMin: 7, lostMax: 8, lost: 9 };
const NUM_COLUMNS = 10;
const AXIS_WIDTH = 64;
const RETRY_MS = 3000;
const SERIES_PER_LINE = 6; // maximum, minimum and last of committed points, then of lost points
const LOST_FROM = 3;

const panels = new Map();
const batches = new Map();
const zoom = readZoom();
let numColumns = 0;

class Panel {
  constructor(element) {
    this.element = element;
    this.facts = JSON.parse(element.dataset.figure);
    this.curves = new Map(); // by address: { table, cursor, stepWidth, numPoints }
    this.request = "";
    this.isVisible = false;
    this.plot = null;
    this.running = null;
    this.isAskedAgain = false;
  }

  get name() {
    return this.element.id.replace(/^plot-/, "");
  }

  // Fetches what is new since the last time, or all columns if the page shows other steps than then.
  refresh() {
    if (!this.isVisible) return Promise.resolve();
    if (this.running) {
      this.isAskedAgain = true;
      return this.running;
    }
    this.running = this.fetchAll()
      .then(() => this.isVisible && this.draw())
      .catch(() => setTimeout(() => this.refresh(), RETRY_MS))
      .finally(() => {
        this.running = null;
        if (this.isAskedAgain) {
          this.isAskedAgain = false;
          this.refresh();
        }
      });
    return this.running;
  }

  async fetchAll() {
    const request = requestedWindow();
    const addresses = new Set(this.facts.lines.flatMap((line) => [line.address, line.divisor].filter(Boolean)));
    const known = request === this.request ? this.curves : new Map();
    const fetched = await Promise.all([...addresses].map((address) => fetchCurve(address, request, known.get(address))));
    if (request !== requestedWindow()) {
      this.isAskedAgain = true;
      return;
    }
    this.curves = new Map([...addresses].map((address, index) => [address, fetched[index]]));
    this.request = request;
  }

  draw() {
    const beganMs = performance.now();
    const data = this.data();
    if (!this.plot) this.mount(data);
    else this.plot.setData(data, false);
    showSharedSteps();
    const text = this.summary();
    this.element.querySelector("canvas").setAttribute("aria-label", text);
    this.resting.textContent = text;
    this.reset.hidden = !zoom.range;
    this.element.dataset.drawn = this.request;
    this.element.dataset.drawMs = (performance.now() - beganMs).toFixed(1);
  }

  // Aligned arrays for uPlot: steps, then SERIES_PER_LINE arrays for each line.
  data() {
    const lines = this.facts.lines.map((line) => lineColumns(line, this.curves));
    const steps = [...new Set(lines.flatMap((line) => [...line.steps]))].sort((a, b) => a - b);
    this.failed = new Set(lines.flatMap((line) => line.failed));
    const index = new Map(steps.map((step, at) => [step, at]));
    const series = lines.flatMap((line) =>
      line.series.map((values, kind) => {
        // uPlot draws on over undefined, but not over null: each lost stretch is a line of its own.
        const nothing = kind < LOST_FROM ? undefined : null;
        const aligned = new Array(steps.length).fill(nothing);
        line.steps.forEach((step, at) => (aligned[index.get(step)] = Number.isFinite(values[at]) ? values[at] : nothing));
        return aligned;
      }),
    );
    return [steps, ...series];
  }

  mount(data) {
    const svg = [...this.element.parentElement.querySelectorAll("svg")].find((drawing) => drawing.clientHeight > 0);
    const height = Math.max(230, Math.round(svg?.getBoundingClientRect().height ?? 250) - 24);
    this.element.setAttribute("role", "group");
    this.element.tabIndex = 0;
    this.element.setAttribute(
      "aria-label",
      `${this.facts.title}, drawn live: arrow keys pan, plus and minus zoom, 0 shows all steps`,
    );
    this.isLog = this.fitsLogAxis(data);
    this.plot = new uPlot(this.options(height), data, this.element);
    this.element.querySelector("canvas").setAttribute("role", "img");
    this.resting = document.createElement("p");
    this.resting.className = "readout";
    this.moving = document.createElement("p");
    this.moving.className = "readout";
    this.moving.hidden = true;
    this.reset = document.createElement("button");
    this.reset.type = "button";
    this.reset.textContent = "Show all steps";
    this.reset.addEventListener("click", () => setZoom(this.name, null));
    this.element.append(this.resting, this.moving, this.reset);
  }

  unmount() {
    this.plot?.destroy();
    this.plot = null;
    this.element.replaceChildren();
    ["role", "tabindex", "aria-label", "data-drawn", "data-draw-ms"].forEach((name) => this.element.removeAttribute(name));
  }

  options(height) {
    const { lines, unit } = this.facts;
    const axis = { stroke: ink("--soft"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line") } };
    return {
      width: this.element.clientWidth,
      height,
      legend: { show: false },
      scales: {
        x: { time: false, range: () => sharedSteps() },
        y: { distr: this.isLog ? 3 : 1, range: (_, low, high) => this.valueRange(low, high) },
      },
      axes: [
        { ...axis, label: "step", labelSize: 18, size: 34 },
        { ...axis, label: this.isLog ? `${unit}, logarithmic` : unit, labelSize: 18, size: AXIS_WIDTH - 18 },
      ],
      series: [{}, ...lines.flatMap((_, index) => lineSeries(`--s${index + 1}`, this.facts.hasDots))],
      bands: lines.flatMap((_, index) => {
        const first = 1 + SERIES_PER_LINE * index;
        return [
          { series: [first, first + 1], fill: ink(`--s${index + 1}`, 0.2) },
          { series: [first + 3, first + 4], fill: ink("--lost", 0.2) },
        ];
      }),
      cursor: {
        sync: { key: "page", scales: ["x", null], filters: { pub: (type) => type.startsWith("mousem") || type === "mouseleave" } },
        drag: { x: true, y: false, setScale: false },
        points: { show: false },
      },
      hooks: {
        setSelect: [(plot) => this.select(plot)],
        setCursor: [(plot) => this.readOut(plot)],
        draw: [(plot) => this.markFailed(plot)],
      },
    };
  }

  fitsLogAxis(data) {
    if (!this.facts.logRatio || this.facts.limits[1] !== null) return false;
    const values = data.slice(1).flat().filter(Number.isFinite);
    const low = Math.min(...values);
    return low > 0 && Math.max(...values) / low >= this.facts.logRatio;
  }

  valueRange(low, high) {
    if (low === null || high === null) return this.isLog ? [1, 10] : [0, 1];
    if (this.isLog) return [low / 1.3, high * 1.3];
    const margin = 0.06 * (high - low) || Math.abs(low) * 0.1 || 0.5;
    const [floor, ceiling] = this.facts.limits;
    const bottom = this.facts.isZeroBased ? Math.min(0, low) : low - margin;
    return [Math.max(bottom, floor ?? -Infinity), Math.min(high + margin, ceiling ?? Infinity)];
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    setZoom(this.name, [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
  }

  readOut(plot) {
    if (!this.moving) return;
    const { left, idx } = plot.cursor;
    const isOver = left >= 0 && idx !== null && idx !== undefined;
    this.moving.hidden = !isOver;
    this.resting.hidden = isOver;
    if (!isOver) return;
    const step = plot.data[0][idx];
    const values = this.facts.lines.map((line, index) => {
      const [high, low, last, , , lost] = plot.data
        .slice(1 + SERIES_PER_LINE * index, 1 + SERIES_PER_LINE * (index + 1))
        .map((numbers) => numbers[idx]);
      const range = high > low ? ` (${shown(low)} to ${shown(high)})` : "";
      const rolledBack = lost === null ? "" : `, rolled back ${shown(lost)}`;
      return `${line.label} ${shown(last)}${range}${rolledBack}`;
    });
    this.moving.dataset.step = step;
    this.moving.textContent = `step ${step.toLocaleString("en")}: ${values.join("; ")}`;
  }

  // Columns with NaN or infinities get a mark at the upper edge: no value can show them.
  markFailed(plot) {
    const { ctx, bbox } = plot;
    ctx.fillStyle = ink("--bad")();
    const size = 4 * devicePixelRatio;
    for (const step of this.failed) {
      const x = plot.valToPos(step, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x - size, bbox.top);
      ctx.lineTo(x + size, bbox.top);
      ctx.lineTo(x, bbox.top + 2 * size);
      ctx.fill();
    }
  }

  summary() {
    const texts = this.facts.lines.map((line) => {
      const { steps, series, failed, isLost } = lineColumns(line, this.curves);
      const last = [...series[2]].filter(Number.isFinite);
      if (!last.length) return `${line.label}: no finite value`;
      const low = Math.min(...[...series[1]].filter(Number.isFinite));
      const high = Math.max(...[...series[0]].filter(Number.isFinite));
      const failures = failed.length ? `, ${failed.length} columns with NaN or infinity` : "";
      const lost = isLost ? ", with steps that were rolled back" : "";
      const { numPoints, stepWidth } = this.curves.get(line.address);
      const columns = stepWidth > 1 ? ` in columns of ${stepWidth.toLocaleString("en")} steps` : "";
      return (
        `${line.label}: ${numPoints.toLocaleString("en")} points${columns}, steps ${steps[0].toLocaleString("en")} to ` +
        `${steps.at(-1).toLocaleString("en")}, first ${shown(last[0])}, last ${shown(last.at(-1))}, ` +
        `lowest ${shown(low)}, highest ${shown(high)}${failures}${lost}`
      );
    });
    return texts.join("; ");
  }
}

function lineColumns(line, curves) {
  const table = curves.get(line.address).table;
  if (line.divisor) return ratioColumns(table, curves.get(line.divisor).table, line.scale);
  const steps = table[COLUMN.steps];
  const failed = [...steps].filter((_, at) => table[COLUMN.nan][at] + table[COLUMN.high][at] + table[COLUMN.low][at] > 0);
  const series = ["maximum", "minimum", "last", "lostMax", "lostMin", "lost"].map((name) => table[COLUMN[name]]);
  return { steps, failed, series, isLost: series[5].some(Number.isFinite) };
}

function ratioColumns(above, below, scale) {
  const divisors = new Map([...below[COLUMN.steps]].map((step, at) => [step, below[COLUMN.last][at]]));
  const steps = above[COLUMN.steps];
  const values = steps.map((step, at) => above[COLUMN.last][at] / divisors.get(step) / scale);
  const none = steps.map(() => NaN);
  return { steps, failed: [], series: [values, values, values, none, none, none], isLost: false };
}

function lineSeries(colour, hasDots) {
  const edge = { stroke: ink(colour, 0.45), width: 1, points: { show: false }, spanGaps: true };
  const lostEdge = { ...edge, stroke: ink("--lost", 0.45) };
  const points = hasDots ? { show: true, size: 7, fill: ink(colour) } : {};
  return [
    edge,
    { ...edge },
    { stroke: ink(colour), width: 2, spanGaps: true, points },
    { ...lostEdge, spanGaps: false },
    { ...lostEdge, spanGaps: false },
    { stroke: ink("--lost"), width: 1.5, dash: [5, 3], points: {} },
  ];
}

// What figures ask for at one moment is fetched with one request for each run.
function fetchCurve(address, request, known) {
  const [path, name] = address.split("?");
  const batch = `${path}?${request}`;
  if (!batches.has(batch)) {
    batches.set(batch, []);
    setTimeout(() => fetchBatch(batch));
  }
  return new Promise((resolve, reject) => batches.get(batch).push({ name, known, resolve, reject }));
}

async function fetchBatch(batch) {
  const curves = batches.get(batch);
  batches.delete(batch);
  try {
    const names = curves.map(({ name, known }) => `&${name}&since=${known?.cursor ?? ""}`);
    const response = await fetch(batch + names.join(""));
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    const numbers = new Float64Array(await response.arrayBuffer());
    let begin = 0;
    JSON.parse(response.headers.get("assay-curves")).forEach((facts, index) => {
      const { known, resolve } = curves[index];
      const column = (at) => numbers.subarray(begin + at * facts.columns, begin + (at + 1) * facts.columns);
      const fresh = Array.from({ length: NUM_COLUMNS }, (_, at) => column(at));
      begin += NUM_COLUMNS * facts.columns;
      const isNews = known && facts.replaces_from !== null;
      const table = isNews ? joined(known.table, fresh, facts.replaces_from) : fresh;
      resolve({ table, cursor: facts.cursor, stepWidth: facts.step_width, numPoints: facts.points });
    });
  } catch (error) {
    curves.forEach(({ reject }) => reject(error));
  }
}

function joined(old, fresh, from) {
  let size = old[0].length;
  while (size > 0 && old[0][size - 1] >= from) size -= 1;
  return old.map((column, at) => Float64Array.of(...column.subarray(0, size), ...fresh[at]));
}

// The steps that all panels show.

function requestedWindow() {
  const range = zoom.range ? `&first=${zoom.range[0]}&last=${zoom.range[1]}` : "";
  return `columns=${numColumns}${range}`;
}

function sharedSteps() {
  if (zoom.range) return zoom.range;
  const ends = [...panels.values()].flatMap((panel) =>
    [...panel.curves.values()].filter(({ table }) => table[0].length).map(({ table }) => [table[0][0], table[0].at(-1)]),
  );
  if (!ends.length) return [0, 1];
  const [first, last] = [Math.min(...ends.map(([first]) => first)), Math.max(...ends.map(([, last]) => last))];
  return [first, Math.max(last, first + 1)];
}

function showSharedSteps() {
  const [min, max] = sharedSteps();
  for (const { plot } of panels.values()) plot?.setScale("x", { min, max });
}

function setZoom(name, range) {
  if (range) {
    const first = Math.max(0, Math.floor(range[0]));
    zoom.range = [first, Math.max(first + 1, Math.ceil(range[1]))];
  } else zoom.range = null;
  const address = new URL(location.href);
  if (range) address.searchParams.set("zoom", `${name}:${zoom.range.join("-")}`);
  else address.searchParams.delete("zoom");
  history.replaceState(history.state, "", address.href.replace(/%3A/gi, ":"));
  showSharedSteps();
  refreshVisible();
}

function readZoom() {
  const found = /^[^:]*:(\d+)-(\d+)$/.exec(new URLSearchParams(location.search).get("zoom") ?? "");
  return { range: found ? [Number(found[1]), Math.max(Number(found[2]), Number(found[1]) + 1)] : null };
}

function onKey(event) {
  const panel = panels.get(event.target.id);
  if (!panel?.plot || event.ctrlKey || event.metaKey || event.altKey) return;
  const [first, last] = sharedSteps();
  const size = last - first;
  const move = Math.max(1, Math.round(size / 8)) * { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const ranges = {
    ArrowLeft: () => [Math.max(0, first + move), Math.max(0, first + move) + size],
    ArrowRight: () => [first + move, last + move],
    "+": () => [first + size / 4, last - size / 4],
    "-": () => [first - size / 2, last + size / 2],
    0: () => null,
  };
  const range = ranges[event.key === "=" ? "+" : event.key];
  if (!range) return;
  event.preventDefault();
  setZoom(panel.name, range());
}

// Which figures there are, how wide they are, and which are visible.

function scan() {
  for (const [id, panel] of panels) {
    if (panel.element.isConnected) continue;
    panel.plot?.destroy();
    panels.delete(id);
  }
  for (const element of document.querySelectorAll(".plot[data-figure]")) {
    if (panels.has(element.id)) continue;
    panels.set(element.id, new Panel(element));
    visible.observe(element.parentElement);
    sizes.observe(element);
  }
  measure();
}

function measure() {
  const widths = [...panels.values()].map((panel) => panel.element.clientWidth).filter((width) => width > 0);
  const narrowest = Math.min(...widths, 4096) - AXIS_WIDTH;
  const columns = Math.max(64, Math.floor(narrowest / 32) * 32);
  if (columns === numColumns) return;
  numColumns = columns;
  refreshVisible();
}

function refreshVisible() {
  for (const panel of panels.values()) panel.refresh();
}

function panelIn(figure) {
  return panels.get(figure.querySelector(".plot")?.id);
}

function ink(variable, opacity = 1) {
  return () => {
    const colour = getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
    return opacity === 1 ? colour : colour + Math.round(opacity * 255).toString(16).padStart(2, "0");
  };
}

function shown(value) {
  return Number.isFinite(value) ? value.toLocaleString("en", { maximumSignificantDigits: 5 }) : "none";
}

const visible = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const panel = panelIn(target);
      if (!panel) continue;
      panel.isVisible = isIntersecting;
      if (isIntersecting) panel.refresh();
      else panel.unmount();
    }
  },
  { rootMargin: "200px" },
);
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const plot = panels.get(target.id)?.plot;
    if (plot && plot.width !== target.clientWidth) plot.setSize({ width: target.clientWidth, height: plot.height });
  }
  measure();
});

scan();
document.addEventListener("keydown", onKey);
document.addEventListener("assay:changed", refreshVisible);
document.body.addEventListener("htmx:afterSwap", scan);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const { plot } of panels.values()) plot?.redraw(false);
});
