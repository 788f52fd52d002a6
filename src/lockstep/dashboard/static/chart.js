"use strict";
// One panel: lines of one metric, drawn by uPlot.
//
// A series is {label, color, dash, x, y, low, high, values, fill}: `y` is drawn, `values` are shown (by default y), `low` and `high`
// are the edges of a band or null, and `fill` fills the area below the line.

const MARGIN = 0.06;
const MAX_VALUES = 6;
/** Ratio of the largest to the smallest number from which an axis may be logarithmic, as in `report/curves.py`. */
const DECADES = 100;
const visibility = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.chart.setVisible(entry.isIntersecting);
}, { rootMargin: "100px" });
const sizes = new ResizeObserver((entries) => {
  for (const entry of entries) entry.target.chart.resize();
});

/** Return whether the numbers of all lines are positive and span decades. */
function spansDecades(series) {
  const numbers = series.flatMap(({ y }) => y.filter((value) => value !== null));
  const least = numbers.reduce((low, value) => Math.min(low, value), Infinity);
  return least > 0 && numbers.some((value) => value >= DECADES * least);
}

/** Return a number if it is a power of ten, else null. */
function powerOfTen(value) {
  const exponent = Math.log10(value);
  return Math.abs(exponent - Math.round(exponent)) < 1e-6 ? value : null;
}

/** Return 1 to 9 times every power of ten from `low` to `high`, both positive. uPlot's own function never ends for some numbers below 1e-8. */
function logarithmicTicks(low, high) {
  const ticks = [];
  for (let exponent = Math.floor(Math.log10(low)); exponent <= Math.log10(high); exponent++)
    for (let digit = 1; digit < 10; digit++) ticks.push(Number(`${digit}e${exponent}`));
  return ticks.filter((tick) => low <= tick && tick <= high);
}

class Chart {
  /** `zoom` is the state that all charts share: `range`, in units of the axis or null, and `set(range)`. */
  constructor(title, zoom) {
    this.zoom = zoom;
    this.values = element("span");
    this.plot = element("div", { className: "plot" });
    this.plot.setAttribute("role", "img");
    this.figure = element("figure", {}, element("figcaption", {}, element("b", { textContent: title }), this.values), this.plot);
    this.title = title;
    this.visible = false;
    this.series = [];
    this.options = {};
    this.uplot = null;
    this.layout = "";
    this.plot.chart = this;
    visibility.observe(this.plot);
    sizes.observe(this.plot);
  }

  /** Show series. Options: `axis` {divisor, unit, range}, `goal`, `stacked` (the vertical axis begins at 0, and the first series is the topmost), `marks` (draw points). */
  show(series, options) {
    this.series = series;
    this.options = options;
    this.figure.dataset.points = series.reduce((count, line) => count + line.x.length, 0);
    const last = series.slice(0, MAX_VALUES).map((line) => `${line.label} ${short(valueAt(line, line.x.length - 1))}`);
    this.plot.setAttribute("aria-label", `${this.title}; last values: ${last.join(", ")}`);
    if (this.visible) this.draw();
    else this.stale = true;
  }

  setVisible(visible) {
    this.visible = visible;
    if (visible && this.stale) this.draw();
  }

  resize() {
    if (this.uplot && this.plot.clientWidth) this.uplot.setSize({ width: this.plot.clientWidth, height: this.plot.clientHeight });
    else if (this.visible && this.series.length) this.draw();
  }

  remove() {
    visibility.unobserve(this.plot);
    sizes.unobserve(this.plot);
    this.uplot?.destroy();
    this.figure.remove();
  }

  /** Draw again with other colors. */
  restyle() {
    this.layout = "";
    if (this.visible) this.draw();
    else this.stale = true;
  }

  draw() {
    this.stale = false;
    if (!this.plot.clientWidth) return;
    const divisor = this.options.axis.divisor;
    const tables = this.series.map((line) => [line.x.map((x) => x / divisor), line.y, ...(line.low ? [line.low, line.high] : [])]);
    const data = tables.length ? uPlot.join(tables) : [[]];
    const logarithmic = !!this.options.decades && spansDecades(this.series);
    const lines = this.series.map((line) => [line.color, line.dash, !!line.low, !!line.fill, line.x.length === 1]);
    const layout = JSON.stringify([lines, this.options.axis.unit, !!this.options.marks, logarithmic]);
    if (layout !== this.layout) {
      this.layout = layout;
      this.uplot?.destroy();
      this.uplot = new uPlot(this.settings(logarithmic), data, this.plot);
    } else this.uplot.setData(data);
    this.showValues(null);
  }

  settings(logarithmic) {
    const ink = color("--muted");
    const grid = { stroke: color("--line"), width: 1 };
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: ink, grid, ticks: { show: false }, font };
    const series = [{}];
    const bands = [];
    for (const line of this.series) {
      const stroke = color(line.color);
      const points = { show: !!this.options.marks || line.x.length === 1, size: 5, fill: stroke };
      series.push({ stroke, width: line.fill ? 0 : 1.5, dash: line.dash, points, fill: line.fill ? stroke : undefined });
      if (line.low) {
        const edge = { width: 0, points: { show: false } };
        bands.push({ series: [series.length + 1, series.length], fill: `${stroke}30` });
        series.push(edge, edge);
      }
    }
    const unit = this.options.axis.unit;
    return {
      width: this.plot.clientWidth,
      height: this.plot.clientHeight,
      padding: [8, 16, 0, 0],
      series,
      bands,
      legend: { show: false },
      scales: { x: { time: false, range: (_, min, max) => this.horizontal(min, max) }, y: { distr: logarithmic ? 3 : 1, range: () => this.vertical(logarithmic) } },
      axes: [
        { ...axis, size: 22, gap: 3, space: 60, values: (_, values) => values.map((value) => `${short(value, 1e3)}${unit}`) },
        {
          ...axis,
          splits: logarithmic ? (_, index, low, high) => logarithmicTicks(low, high) : undefined,
          grid: logarithmic ? { ...grid, filter: (_, values) => values.map(powerOfTen) } : grid,
          size: 46,
          gap: 4,
          space: 26,
          // a logarithmic axis leaves out numbers between powers of ten, as null, where they would be too dense
          values: (_, values) => values.map((value) => (value === null ? "" : short(value, 1e3))),
        },
      ],
      cursor: {
        sync: { key: "all", scales: ["x", null], setSeries: false },
        drag: { x: true, y: false, setScale: false },
        points: { show: false },
        bind: { dblclick: () => () => this.zoom.set(null) },
      },
      hooks: {
        setCursor: [(plot) => this.showValues(plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : null)],
        setSelect: [(plot) => this.select(plot)],
        drawAxes: [(plot) => this.drawGoal(plot)],
      },
    };
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const divisor = this.options.axis.divisor;
    const range = [left, left + width].map((place) => plot.posToVal(place, "x") * divisor);
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoom.set(range);
  }

  horizontal(min, max) {
    const { divisor, range } = this.options.axis;
    if (this.zoom.range) return this.zoom.range.map((x) => x / divisor);
    if (range) return range;
    return min === null ? [0, 1] : [min - 0.5, max + 0.5];
  }

  /**
   * Return the range of the lines. Bands extend it by at most its half, so that single extremes do not flatten the lines.
   *
   * `logarithmic` is that of the drawing that asks: uPlot also asks for one that has been replaced, and never ends with a logarithmic
   * axis that begins at 0 or below.
   */
  vertical(logarithmic) {
    const [from, to] = this.zoom.range ?? [-Infinity, Infinity];
    let [low, high, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const line of this.series)
      line.x.forEach((x, place) => {
        if (x < from || x > to || line.y[place] === null) return;
        low = Math.min(low, line.y[place]);
        high = Math.max(high, line.y[place]);
        bottom = Math.min(bottom, line.low?.[place] ?? line.y[place]);
        top = Math.max(top, line.high?.[place] ?? line.y[place]);
      });
    if (logarithmic) return low > 0 && low <= high ? [low / 1.5, high * 1.5] : [0.1, 1];
    if (low > high) return [0, 1];
    const half = (high - low) / 2;
    [low, high] = half ? [Math.max(bottom, low - half), Math.min(top, high + half)] : [bottom, top];
    if (this.options.limit) high = Math.min(high, this.options.limit);
    if (this.options.goal != null) [low, high] = [Math.min(low, this.options.goal), Math.max(high, this.options.goal)];
    const margin = MARGIN * (high - low) || Math.abs(high) * MARGIN || 1;
    return [this.options.stacked ? 0 : low - margin, high + margin];
  }

  drawGoal(plot) {
    if (this.options.goal == null) return;
    const y = plot.valToPos(this.options.goal, "y", true);
    const { left, width } = plot.bbox;
    plot.ctx.save();
    plot.ctx.strokeStyle = color("--muted");
    plot.ctx.setLineDash([6, 4]);
    plot.ctx.beginPath();
    plot.ctx.moveTo(left, y);
    plot.ctx.lineTo(left + width, y);
    plot.ctx.stroke();
    plot.ctx.restore();
  }

  /** Show the values at x, a position on the axis, or the last ones. */
  showValues(x) {
    const place = (line) => (x === null ? line.x.length - 1 : nearest(line.x, x * this.options.axis.divisor));
    const shown = (this.options.stacked ? [...this.series].reverse() : this.series).slice(0, MAX_VALUES);
    const spans = shown.map((line) => {
      const value = element("span", { textContent: short(valueAt(line, place(line))), title: line.label });
      value.style.color = color(line.color);
      return value;
    });
    this.values.replaceChildren(...spans);
  }
}

function valueAt(line, place) {
  return (line.values ?? line.y)[place];
}
