"use strict";
// The panels of the selected runs: curves, time by phase, videos.

const PANELS = {
  return: "Return, last 20 episodes",
  evaluation: "Return of evaluations",
  intrinsic_return: "Intrinsic return",
  policy_loss: "Policy loss",
  value_loss: "Value loss",
  approx_kl: "KL divergence (nats)",
  clip_frac: "Fraction of clipped samples",
  entropy: "Entropy (nats)",
  explained_variance: "Explained variance",
  fps: "Speed (steps/s)",
};
/** Phases in the order of all tables and figures, with their colors. */
const PHASES = { rollout: 0, learn: 3, sync: 2, wait: "idle", publish: 4, record: 5 };
const ROLES = { t_: "rank 0", player_t_: "players" };
const MAX_BANDS = 3;
const TIME_UNITS = [[7200, 3600, " h"], [300, 60, " min"], [0, 1, " s"]];
const EVALUATION = "evaluation/";

class Panels {
  constructor() {
    this.over = "env_steps";
    this.charts = new Map();
    this.films = new Map();
    this.zoom = { range: null, set: (range) => this.setZoom(range) };
    this.shown = [];
    this.goal = null;
    for (const radio of document.querySelectorAll("[name=over]"))
      radio.addEventListener("change", () => {
        this.over = radio.value;
        this.setZoom(null);
      });
    byId("unzoom").addEventListener("click", () => this.setZoom(null));
    byId("more").addEventListener("toggle", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const chart of this.charts.values()) chart.restyle();
    });
    for (const [phase, number] of Object.entries(PHASES)) byId("legend").append(element("li", {}, square(number), phase));
  }

  setZoom(range) {
    this.zoom.range = range;
    byId("unzoom").hidden = range === null;
    this.draw();
  }

  /** Show runs: `{run, style, curves}` each. */
  show(shown) {
    this.shown = shown;
    this.draw();
  }

  draw() {
    const goals = new Set(this.shown.map(({ curves }) => curves.goal));
    this.goal = goals.size === 1 ? [...goals][0] : null;
    const names = new Set(this.shown.flatMap(({ curves }) => Object.keys(curves.metrics.metrics)));
    const evaluated = new Set(this.shown.flatMap(({ curves }) => Object.keys(curves.evaluations.metrics)));
    this.axis = this.findAxis();
    byId("waiting").hidden = names.size > 0;
    const main = Object.keys(PANELS).filter((name) => name === "return" || names.has(name) || (name === "evaluation" && evaluated.size));
    this.arrange("main-panels", names.size ? main : [], PANELS);
    const others = [...[...names].filter((name) => !(name in PANELS)), ...[...evaluated].map((name) => EVALUATION + name)].sort();
    byId("more").hidden = others.length === 0;
    if (byId("more").open) this.arrange("more-panels", others, {});
    this.drawTime();
    this.drawVideos();
  }

  /** Return the horizontal axis of all panels: its unit, and the range of all selected runs, in that unit. */
  findAxis() {
    const ends = this.shown.map(({ curves }) => (curves.metrics.axes[this.over] ?? []).filter((x) => x !== null)).filter((xs) => xs.length);
    const smallest = Math.min(...ends.map((xs) => xs[0]));
    const largest = Math.max(...ends.map((xs) => xs.at(-1)));
    const [, divisor, unit] = this.over === "seconds" ? TIME_UNITS.find(([least]) => largest >= least) ?? TIME_UNITS.at(-1) : [0, 1, ""];
    return { divisor, unit, range: smallest < largest ? [smallest / divisor, largest / divisor] : null };
  }

  arrange(id, names, titles) {
    const charts = names.map((name) => this.chart(`${id} ${name}`, titles[name] ?? name));
    for (const [key, chart] of [...this.charts])
      if (key.startsWith(`${id} `) && !charts.includes(chart)) {
        chart.remove();
        this.charts.delete(key);
      }
    arrange(byId(id), charts.map((chart) => chart.figure));
    names.forEach((name, place) => {
      charts[place].figure.dataset.metric = name;
      const goal = name === "return" || name === "evaluation" ? this.goal : null;
      const marks = name.startsWith("evaluation");
      charts[place].show(this.lines(name), { axis: this.axis, goal, marks, decades: name === "value_loss" });
    });
  }

  chart(key, title) {
    if (!this.charts.has(key)) this.charts.set(key, new Chart(title, this.zoom));
    return this.charts.get(key);
  }

  lines(name) {
    const bands = this.shown.length <= MAX_BANDS;
    return this.shown
      .map(({ run, style, curves }) => {
        const { x, mean, low, high } = this.points(curves, name);
        return { label: run.path, ...style, x, y: mean, low: bands ? low : null, high: bands ? high : null };
      })
      .filter((line) => line.x.length);
  }

  points(curves, name) {
    if (name === "evaluation") return pointsOf(curves.evaluations, "return_mean", this.over);
    if (name.startsWith(EVALUATION)) return pointsOf(curves.evaluations, name.slice(EVALUATION.length), this.over);
    if (name !== "return") return pointsOf(curves.metrics, name, this.over);
    const smooth = pointsOf(curves.metrics, "return_mean_20", this.over);
    return smooth.x.length ? smooth : pointsOf(curves.metrics, "return_mean", this.over);
  }

  /** Draw a bar per run and role; of a single run also the phases over time. */
  drawTime() {
    const roles = this.shown.flatMap(({ run, curves }) =>
      Object.entries(ROLES)
        .map(([prefix, role]) => ({ run, role, phases: this.phases(curves, prefix) }))
        .filter(({ phases }) => phases.some(({ x }) => x.length)),
    );
    byId("time").hidden = roles.length === 0;
    byId("bars").replaceChildren(...roles.map(timeBar));
    const single = this.shown.length === 1 ? roles : [];
    arrange(byId("time-panels"), single.map(({ role }) => this.chart(`time ${role}`, `ms per iteration, ${role}`).figure));
    for (const { role, phases } of single) this.chart(`time ${role}`).show(...this.stack(phases));
  }

  phases(curves, prefix) {
    return Object.entries(PHASES).map(([phase, number]) => {
      const { x, mean } = pointsOf(curves.metrics, prefix + phase, this.over);
      return { phase, number, x, milliseconds: mean.map((seconds) => 1000 * seconds) };
    });
  }

  /** Return the arguments of `Chart.show` for stacked areas: the sum of all phases first, so that smaller sums cover larger ones. */
  stack(phases) {
    const sums = phases[0].x.map(() => 0);
    const areas = phases.map(({ phase, number, x, milliseconds }) => {
      milliseconds.forEach((value, place) => (sums[place] += value));
      return { label: phase, color: phaseColor(number), x, y: [...sums], values: milliseconds, fill: true };
    });
    const sorted = [...sums].sort((a, b) => a - b);
    const typical = sorted[Math.floor(0.95 * sorted.length)];
    // next to a single long iteration, such as one that compiles, all others would be invisible
    const limit = sorted.at(-1) < 3 * typical ? null : 1.5 * typical;
    return [areas.filter(({ values }) => values.some((value) => value > 0)).reverse(), { axis: this.axis, stacked: true, limit }];
  }

  drawVideos() {
    const filmed = this.shown.filter(({ curves }) => curves.videos.length);
    byId("videos").hidden = filmed.length === 0;
    const films = filmed.map(({ run, curves }) => {
      if (!this.films.has(run.key)) this.films.set(run.key, new Film(run));
      return this.films.get(run.key).update(curves.videos);
    });
    arrange(byId("films"), films);
  }
}

/** The videos of one run, the newest first. */
class Film {
  constructor(run) {
    this.run = run;
    this.names = "";
    this.choice = element("select", {});
    this.choice.setAttribute("aria-label", `Video of ${run.path}`);
    this.choice.addEventListener("change", () => this.load());
    this.video = element("video", { controls: true, loop: true, muted: true, playsInline: true, preload: "metadata" });
    this.figure = element("figure", {}, element("figcaption", {}, element("b", { textContent: run.path }), this.choice), this.video);
  }

  update(videos) {
    const names = videos.map(({ key }) => key).join();
    if (names === this.names) return this.figure;
    const newest = this.choice.selectedIndex <= 0 && this.video.paused;
    const current = this.choice.value;
    this.names = names;
    this.choice.replaceChildren(...videos.map(({ key, name }) => element("option", { value: key, textContent: name.replace(/\.mp4$/, "") })));
    if (!newest && videos.some(({ key }) => key === current)) this.choice.value = current;
    else this.load();
    return this.figure;
  }

  load() {
    this.video.src = address(`/runs/${this.run.key}/videos/${this.choice.value}`);
  }
}

function timeBar({ run, role, phases }) {
  const means = phases.map(({ phase, number, milliseconds }) => ({
    phase,
    number,
    mean: milliseconds.reduce((sum, value) => sum + value, 0) / (milliseconds.length || 1),
  }));
  const total = means.reduce((sum, { mean }) => sum + mean, 0);
  const stack = element("div", { className: "stack" });
  const parts = means.filter(({ mean }) => mean > 0).map(({ phase, number, mean }) => {
    const part = element("span", { title: `${phase} ${short(mean)} ms, ${Math.round((100 * mean) / total)}%` });
    part.style.width = `${(100 * mean) / total}%`;
    part.style.background = `var(${phaseColor(number)})`;
    stack.append(part);
    return part.title;
  });
  stack.setAttribute("role", "img");
  stack.setAttribute("aria-label", parts.join("; "));
  return element("div", { className: "row" }, element("span", { textContent: `${run.path}, ${role}` }), stack, element("span", { className: "number", textContent: `${short(total)} ms` }));
}

function phaseColor(number) {
  return number === "idle" ? "--idle" : `--series-${number}`;
}

function square(number) {
  const created = element("span", { className: "square" });
  created.style.background = `var(${phaseColor(number)})`;
  return created;
}
