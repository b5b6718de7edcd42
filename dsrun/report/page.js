// Values under the pointer. Without this script everything but them is there.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const nearest = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    return step - steps[low] <= steps[high] - step ? low : high;
  };
  const written = (value) => {
    if (value === null) return "not finite";
    const size = Math.abs(value);
    if (size && (size < 1e-4 || size >= 1e15)) return value.toExponential(3);
    return value.toLocaleString("en", {maximumSignificantDigits: size >= 1e4 ? 7 : 4});
  };
  const row = (curve, value, unit) => {
    const line = document.createElement("div");
    line.innerHTML = '<svg class="key" viewBox="0 0 24 8"><path class="line" d="M1 4h22"/></svg>';
    line.querySelector("path").classList.add(`c${curve.colour}`);
    line.append(curve.label);
    const shown = document.createElement("span");
    shown.textContent = written(value) + (unit === "%" || unit.startsWith("% ") ? " %" : unit.includes(" ") ? "" : ` ${unit}`);
    line.append(shown);
    return line;
  };
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const chart = data[figure.dataset.chart];
    for (const area of figure.querySelectorAll(".area")) {
      const svg = area.querySelector("svg");
      const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
      cursor.setAttribute("class", "cursor");
      svg.append(cursor);
      const hide = () => { tip.hidden = true; cursor.removeAttribute("d"); };
      area.addEventListener("pointerleave", hide);
      area.addEventListener("pointermove", (event) => {
        const box = area.getBoundingClientRect();
        const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
        const step = chart.low + share * (chart.high - chart.low);
        const found = chart.curves.map((curve) => [curve, nearest(curve.steps, step)]);
        const close = found.map(([curve, index]) => curve.steps[index])
          .reduce((one, other) => Math.abs(one - step) <= Math.abs(other - step) ? one : other);
        const shown = found.filter(([curve, index]) => Math.abs(curve.steps[index] - close) * 50 <= chart.high - chart.low);
        const head = document.createElement("b");
        head.textContent = `step ${close.toLocaleString("en")}`;
        tip.replaceChildren(head, ...shown.map(([curve, index]) => row(curve, curve.values[index], chart.unit)));
        cursor.setAttribute("d", `M${1000 * (close - chart.low) / (chart.high - chart.low)} 0v300`);
        tip.hidden = false;
        const left = box.left + scrollX + share * box.width + 16;
        const most = scrollX + document.documentElement.clientWidth - tip.offsetWidth - 8;
        tip.style.left = `${left > most ? Math.max(8, left - tip.offsetWidth - 32) : left}px`;
        tip.style.top = `${box.top + scrollY + 12}px`;
      });
    }
  }
})();
