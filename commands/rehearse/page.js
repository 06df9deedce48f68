"use strict";
(() => {
  const source = document.getElementById("data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const get = (id) => document.getElementById(id);
  const make = (tag, kind, text) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const letter = (number) => (number < 26 ? "" : letter(Math.floor(number / 26) - 1)) + String.fromCharCode(65 + (number % 26));
  const cell = (held) => {
    if (!held.length) return Object.assign(make("span", "cell", ""), { title: "free" });
    const known = held.filter((pod) => pod >= 0);
    if (!known.length) return Object.assign(make("span", "cell other", "·"), { title: "held by others" });
    const workload = data.pods[known[0]][1];
    const made = make("span", "cell c" + (workload % 8), known.length > 1 ? "+" : letter(workload));
    made.title = known.map((pod) => data.pods[pod][0]).join(", ");
    return made;
  };
  const node = ([name, , type, side, devices]) => {
    const made = make("div", "node " + side);
    made.dataset.node = name;
    const used = devices.filter((held) => held.length).length;
    const words = side === "driver" ? "driver" : side === "plugin" ? "plugin" : "neither plugin nor driver";
    made.append(make("p", "", name + ": " + words + ", " + used + " of " + devices.length + " in use"));
    const cells = make("div", devices.length % 4 ? "cells wide" : devices.length === 12 ? "cells wide" : "cells");
    cells.setAttribute("role", "img");
    cells.setAttribute("aria-label", name + ", " + type + ": " + used + " of " + devices.length + " devices in use");
    cells.append(...devices.map(cell));
    made.append(cells);
    return made;
  };
  const bar = (text, used, total, most) => {
    const space = "http://www.w3.org/2000/svg";
    const box = document.createElementNS(space, "svg");
    box.setAttribute("class", "bar");
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", text);
    for (const [amount, kind] of [[total, "var(--plugin)"], [used, "var(--c0)"]]) {
      const part = document.createElementNS(space, "rect");
      part.setAttribute("height", "100%");
      part.setAttribute("width", (most ? (100 * amount) / most : 0) + "%");
      part.setAttribute("fill", kind);
      box.append(part);
    }
    const label = document.createElementNS(space, "text");
    label.setAttribute("x", "6");
    label.setAttribute("y", "13");
    label.textContent = text;
    box.append(label);
    return box;
  };
  const draw = (step) => {
    const groups = new Map();
    for (const shot of data.shots[step]) {
      const name = Object.hasOwn(data.groups, shot[1]) ? data.groups[shot[1]] : "with the driver from the start";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(shot);
    }
    get("nodes").replaceChildren(
      ...[...groups].map(([name, members]) => {
        const box = make("div", "group");
        box.append(make("h3", "", name));
        const inside = make("div", "members");
        inside.append(...members.map(node));
        box.append(inside);
        return box;
      }),
    );
    const [plugin, pluginUsed, driver, driverUsed, waiting] = data.figures[step];
    const most = Math.max(...data.figures.map((each) => Math.max(each[0], each[2], each[4])));
    get("bars").replaceChildren(
      bar("device plugin: " + pluginUsed + " of " + plugin + " devices in use", pluginUsed, plugin, most),
      bar("driver: " + driverUsed + " of " + driver + " devices in use", driverUsed, driver, most),
      bar("pods that do not run: " + waiting + " devices", waiting, waiting, most),
    );
    get("told").textContent = data.told[step];
    get("waiting").replaceChildren(...data.waiting[step].map((text) => make("li", "", text)));
    get("back").disabled = step === 0;
    get("forward").disabled = step === data.shots.length - 1;
    get("slider").setAttribute("aria-valuetext", data.told[step]);
  };
  const slider = get("slider");
  const go = (step) => {
    slider.value = String(step);
    draw(Number(slider.value));
  };
  slider.addEventListener("input", () => draw(Number(slider.value)));
  get("back").addEventListener("click", () => go(Number(slider.value) - 1));
  get("forward").addEventListener("click", () => go(Number(slider.value) + 1));
  get("workloads").replaceChildren(
    ...data.workloads.slice(0, 40).map((name, number) => {
      const entry = make("li");
      entry.append(make("span", "cell c" + (number % 8), letter(number)), name);
      return entry;
    }),
  );
  get("play").hidden = false;
  draw(0);
})();
