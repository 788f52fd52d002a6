"use strict";
// Curves of one run, of which the server sends only what is new.

class RunCurves {
  constructor() {
    this.version = null;
    this.more = true;
    this.position = [0, 0, 0];
    this.metrics = emptyCurves();
    this.evaluations = emptyCurves();
    this.videos = [];
    this.goal = null;
    this.note = "";
  }

  /** Add an answer of the server to a request for this position. */
  update(answer) {
    this.more = false;
    if (answer.error) {
      this.note = answer.error;
      this.version = null;
      return;
    }
    this.version = answer.version;
    this.more = answer.more;
    this.note = answer.skipped ? `${answer.skipped.toLocaleString("en")} ${answer.skipped === 1 ? "line" : "lines"} of metrics.jsonl or evaluations.jsonl can't be read` : "";
    this.videos = answer.videos;
    this.goal = answer.goal;
    this.position = answer.curves.position;
    this.metrics = addPoints(this.metrics, answer.curves);
    this.evaluations = addPoints(emptyCurves(), answer.evaluations);
  }
}

function emptyCurves() {
  return { axes: {}, metrics: {} };
}

/** Replace the points from `part.from` on. A metric that is new at that point has no values before it. */
function addPoints(curves, part) {
  const extend = (values, added) => {
    const kept = (values ?? []).slice(0, part.from);
    while (kept.length < part.from) kept.push(null);
    return kept.concat(added);
  };
  const axes = {};
  for (const name in part.axes) axes[name] = extend(curves.axes[name], part.axes[name]);
  const metrics = {};
  for (const name in part.metrics) {
    metrics[name] = {};
    for (const kind in part.metrics[name]) metrics[name][kind] = extend(curves.metrics[name]?.[kind], part.metrics[name][kind]);
  }
  return { axes, metrics };
}

/** Return the points of a metric over an axis, `{x, mean, low, high}`; low and high are null if every point is one iteration. */
function pointsOf(curves, name, over) {
  const values = curves.metrics[name];
  const axis = curves.axes[over];
  const points = { x: [], mean: [], low: values?.low ? [] : null, high: values?.low ? [] : null };
  if (!values || !axis) return points;
  for (let place = 0; place < axis.length; place++) {
    const x = axis[place];
    if (x === null || values.mean[place] === null || x <= points.x[points.x.length - 1]) continue;
    points.x.push(x);
    points.mean.push(values.mean[place]);
    if (points.low) {
      points.low.push(values.low[place]);
      points.high.push(values.high[place]);
    }
  }
  return points;
}

/** Return the index of the point that is nearest to x. */
function nearest(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
}
