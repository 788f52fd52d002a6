"use strict";
// Numbers, durations and elements.

const UNITS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** Format a number with four significant digits: 1.234M, 4321, 0.0123, 1.2e-5. Units are used from `least` on. */
function short(value, least = 1e4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e12 || (size > 0 && size < 1e-3)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  if (size < least) return trim(value);
  const [unit, name] = UNITS.find(([unit]) => size >= unit);
  return `${trim(value / unit)}${name}`;
}

function trim(value) {
  return String(Number(value.toPrecision(4)));
}

/** Format a duration in its largest unit, as `lockstep runs` does. */
function duration(seconds) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (seconds >= size) return `${Math.round(seconds / size)} ${unit}`;
  return `${Math.round(seconds)} s`;
}

function gigabytes(bytes) {
  return (bytes / 2 ** 30).toFixed(1);
}

function byId(id) {
  return document.getElementById(id);
}

/** Create an element with properties and children. Text is never parsed as HTML. */
function element(tag, properties = {}, ...children) {
  const created = Object.assign(document.createElement(tag), properties);
  created.append(...children);
  return created;
}

function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Order the children of an element, and remove all others. Moves only what is out of place, so that the focus stays. */
function arrange(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
