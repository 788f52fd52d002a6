"use strict";
// Table of runs, with sorting, a filter and the selection.

const MAX_SELECTED = 12;
const COLORS = 6;

class RunTable {
  /** `changed` is called when the user has changed the selection. */
  constructor(changed) {
    this.runs = [];
    this.rows = new Map();
    this.sort = { column: "age", descending: false };
    this.changed = changed;
    const keys = location.hash.slice(1).split(",").filter(Boolean).slice(0, MAX_SELECTED);
    /** Slot by key of the run; the slot decides the color. */
    this.selected = new Map(keys.map((key, slot) => [key, slot]));
    this.automatic = keys.length === 0;
    byId("filter").addEventListener("input", () => this.draw());
    for (const header of document.querySelectorAll("[data-sort]"))
      header.querySelector("button").addEventListener("click", () => this.sortBy(header.dataset.sort));
  }

  update(runs) {
    this.runs = runs;
    const known = new Set(runs.map((run) => run.key));
    for (const key of this.rows.keys()) if (!known.has(key)) this.rows.delete(key);
    for (const key of [...this.selected.keys()]) if (!known.has(key)) this.selected.delete(key);
    if (this.automatic) this.follow();
    this.draw();
  }

  /** Until the user selects runs, show the one that was written last; change only if it has ended and another is running. */
  follow() {
    const byAge = this.runs.filter((run) => run.state !== "broken").sort((a, b) => a.age - b.age);
    const running = byAge.filter((run) => run.state === "running");
    const shown = this.runs.find((run) => this.selected.has(run.key));
    if (shown && (shown.state === "running" || running.length === 0)) return;
    const newest = running[0] ?? byAge[0];
    this.selected = new Map(newest ? [[newest.key, 0]] : []);
  }

  get chosen() {
    return this.runs.filter((run) => this.selected.has(run.key)).sort((a, b) => this.selected.get(a.key) - this.selected.get(b.key));
  }

  style(key) {
    const slot = this.selected.get(key) ?? 0;
    return { color: `--series-${slot % COLORS}`, dash: slot < COLORS ? [] : [6, 4] };
  }

  toggle(key, on) {
    this.automatic = false;
    if (!on) this.selected.delete(key);
    else if (this.selected.size < MAX_SELECTED) {
      const used = new Set(this.selected.values());
      this.selected.set(key, [...Array(MAX_SELECTED).keys()].find((slot) => !used.has(slot)));
    }
    history.replaceState(null, "", `#${[...this.selected.keys()].join(",")}`);
    this.draw();
    this.changed();
  }

  sortBy(column) {
    const numeric = !["path", "state", "env", "age"].includes(column);
    const same = this.sort.column === column;
    this.sort = { column, descending: same ? !this.sort.descending : numeric };
    this.draw();
  }

  draw() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.runs.filter((run) => words.every((word) => `${run.path} ${run.state} ${run.env ?? ""}`.toLowerCase().includes(word)));
    const { column, descending } = this.sort;
    const missing = (run) => run[column] === null || run[column] === undefined;
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
    shown.sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : compare(a[column], b[column]) * (descending ? -1 : 1)) || compare(a.path, b.path));
    for (const header of document.querySelectorAll("[data-sort]"))
      if (header.dataset.sort === column) header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    arrange(byId("rows"), shown.map((run) => this.row(run)));
    const running = this.runs.filter((run) => run.state === "running").length;
    setText(byId("counts"), `${this.runs.length}, ${running} running${shown.length < this.runs.length ? `, ${shown.length} shown` : ""}`);
    byId("none").hidden = this.runs.length > 0;
    byId("scroll").hidden = this.runs.length === 0;
  }

  row(run) {
    let row = this.rows.get(run.key);
    if (!row) this.rows.set(run.key, (row = this.create(run)));
    row.box.checked = this.selected.has(run.key);
    row.box.disabled = !row.box.checked && this.selected.size >= MAX_SELECTED;
    row.box.title = row.box.disabled ? `At most ${MAX_SELECTED} runs can be selected` : "";
    setText(row.name, run.path);
    setText(row.why, run.why ?? "");
    row.why.hidden = !run.why;
    setText(row.state, run.state);
    row.state.dataset.state = run.state;
    const broken = run.state === "broken";
    row.line.classList.toggle("broken", broken);
    setText(row.env, run.env ?? "");
    setText(row.steps, broken ? "" : `${run.steps.toLocaleString("en")} · ${run.share}%`);
    row.progress.hidden = broken;
    row.progress.firstChild.style.width = broken ? "" : `${run.share}%`;
    for (const name of ["return_mean", "best_evaluation"])
      setText(row[name], run[name] === null || run[name] === undefined ? "" : short(run[name]));
    setText(row.steps_per_second, Number.isFinite(run.steps_per_second) ? Math.round(run.steps_per_second).toLocaleString("en") : "");
    setText(row.age, run.age === undefined ? "" : duration(run.age));
    return row.line;
  }

  create(run) {
    const box = element("input", { type: "checkbox", id: `select-${run.key}` });
    box.addEventListener("change", () => this.toggle(run.key, box.checked));
    const name = element("label", { htmlFor: box.id });
    const why = element("small");
    const steps = element("span");
    const progress = element("span", { className: "progress" }, element("i"));
    const cell = (className, label, ...children) => {
      const created = element("td", { className }, ...children);
      if (label) created.dataset.label = label;
      return created;
    };
    const cells = {
      state: cell("state"),
      env: cell("env"),
      stepsCell: cell("number steps", "steps", steps, progress),
      return_mean: cell("number", "return"),
      best_evaluation: cell("number", "best evaluation"),
      steps_per_second: cell("number", "steps/s"),
      age: cell("number", "age"),
    };
    const line = element("tr", {}, element("td", {}, box), cell("name", "", name, why), ...Object.values(cells));
    line.dataset.key = run.key;
    return { line, box, name, why, steps, progress, ...cells };
  }
}
