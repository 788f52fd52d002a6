"use strict";
// Load of the machine, with its course since the page was opened.

const SAMPLES = 60;

class Machine {
  constructor() {
    this.before = null;
    this.loads = [];
    this.shares = [];
  }

  update({ host, cores, cpu, memory }) {
    byId("machine").hidden = !cpu;
    if (!cpu) return;
    byId("machine").title = `${host}, ${cores} cores`;
    const [busy, whole] = this.before ? cpu.map((ticks, place) => ticks - this.before[place]) : cpu;
    if (this.before && whole > 0) this.loads = [...this.loads, busy / whole].slice(-SAMPLES);
    this.before = cpu;
    this.shares = [...this.shares, memory[0] / memory[1]].slice(-SAMPLES);
    setText(byId("cpu"), this.loads.length ? `${Math.round(100 * this.loads.at(-1))}% of ${cores} cores` : "–");
    setText(byId("memory"), `${gigabytes(memory[0])} of ${gigabytes(memory[1])} GiB`);
    line("cpu-line", this.loads);
    line("memory-line", this.shares);
  }
}

function line(id, shares) {
  const first = SAMPLES - shares.length;
  byId(id).setAttribute("points", shares.map((share, place) => `${first + place},${19 - 18 * share}`).join(" "));
}
