"use strict";
// The loop that asks the server for what is new, and shows it. It pauses while the page is not visible.

const PERIOD = 2000;
const PATIENCE = 10000;
const TOKEN = new URLSearchParams(location.search).get("token");
const table = new RunTable(wake);
const panels = new Panels();
const machine = new Machine();
const curves = new Map();
let hurry = false;
let resume = () => {};
let answered = null;

class Refused extends Error {}

function address(path, parameters = {}) {
  return `${path}?${new URLSearchParams({ ...parameters, token: TOKEN })}`;
}

async function ask(path, parameters) {
  const answer = await fetch(address(path, parameters), { signal: AbortSignal.timeout(PATIENCE) });
  if (answer.status === 403) throw new Refused();
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

/** Fetch what is new of a run. */
async function read(run) {
  if (!curves.has(run.key)) curves.set(run.key, new RunCurves());
  const known = curves.get(run.key);
  if (run.state === "broken") {
    known.more = false;
    return;
  }
  if (known.version !== run.version || known.more) known.update(await ask(`/runs/${run.key}`, { position: known.position.join(".") }));
}

async function update() {
  const { folder, machine: load, runs } = await ask("/runs");
  answered = new Date();
  setText(byId("folder"), folder);
  machine.update(load);
  table.update(runs);
  const chosen = table.chosen;
  for (const key of curves.keys()) if (!chosen.some((run) => run.key === key)) curves.delete(key);
  showChips(chosen);
  const results = await Promise.allSettled(chosen.map(read));
  show(); // the curves of all other runs, if one was deleted meanwhile
  const failed = results.find(({ status }) => status === "rejected");
  if (failed) throw failed.reason;
}

function show() {
  const shown = table.chosen.filter((run) => curves.has(run.key)).map((run) => ({ run, style: table.style(run.key), curves: curves.get(run.key) }));
  byId("selected").hidden = shown.length === 0;
  const notes = shown.filter(({ run, curves: { note } }) => note || run.state === "broken");
  byId("notes").replaceChildren(...notes.map(({ run, curves: { note } }) => element("p", { textContent: `${run.path}: ${note || run.why}` })));
  panels.show(shown);
}

function showChips(chosen) {
  const chips = chosen.map((run) => {
    const { color: name, dash } = table.style(run.key);
    const swatch = element("i", { className: "swatch" });
    swatch.style.borderTopColor = `var(${name})`;
    swatch.style.borderTopStyle = dash.length ? "dashed" : "solid";
    const remove = element("button", { textContent: "×", title: "Deselect" });
    remove.setAttribute("aria-label", `Deselect ${run.path}`);
    remove.addEventListener("click", () => table.toggle(run.key, false));
    return element("li", {}, swatch, element("span", { textContent: run.path }), remove);
  });
  const text = chosen.map((run) => `${run.key} ${table.selected.get(run.key)}`).join();
  if (byId("chips").dataset.shown === text) return;
  byId("chips").dataset.shown = text;
  byId("chips").replaceChildren(...chips);
}

function showConnection(error) {
  const target = byId("connection");
  target.className = error ? "lost" : "good";
  if (!error) return setText(target, "live");
  const since = answered ? `; the numbers are those of ${answered.toLocaleTimeString()}` : "";
  const why = error instanceof Refused ? "this address is of an earlier dashboard: open the one that the terminal shows" : "the dashboard does not answer";
  setText(target, `${why}${since}`);
}

/** Ask the server at once, not after the period. */
function wake() {
  hurry = true;
  resume();
}

/** Wait for the next update: until the period is over and the page is visible, or until `wake` is called. */
function pause(milliseconds) {
  return new Promise((resolve) => {
    const timer = setTimeout(() => document.hidden || resume(), milliseconds);
    resume = () => {
      clearTimeout(timer);
      hurry = false;
      resolve();
    };
    if (hurry) resume();
  });
}

document.addEventListener("visibilitychange", () => document.hidden || wake());

async function run() {
  for (;;) {
    try {
      await update();
      showConnection(null);
    } catch (error) {
      console.debug(error);
      showConnection(error);
    }
    const more = [...curves.values()].some((known) => known.more);
    await pause(more ? 0 : PERIOD);
  }
}

run();
