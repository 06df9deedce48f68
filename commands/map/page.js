"use strict";
// Draws the device map. All text from the cluster goes through textContent or setAttribute, never through markup.
(() => {
  const STEP = 24;
  const SVG = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(id);
  let data = JSON.parse(byId("data").textContent);
  let shown = STEP;
  let chosen = "";

  function make(tag, attributes, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }
  function draw(tag, attributes, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }
  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== undefined && value !== null && value !== "") element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }
  // The style shows the columns' names on a phone, where the cells of a row stand below each other.
  function named(head, rows) {
    for (const row of rows) {
      [...row.cells].forEach((cell, at) => { cell.dataset.column = head.rows[0].cells[at].textContent; });
    }
    return rows;
  }
  const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  // --- the summary ----------------------------------------------------------------------------------------

  function summary() {
    byId("cluster").textContent = data.cluster;
    byId("problems").replaceChildren(...data.problems.map((text) => make("p", {class: "problem"}, text)));
    const rows = data.types.map((type) => {
      const states = type.devicesByState;
      const places = Object.entries(type.places).map(([size, count]) => `${count} x ${size}`).join(", ");
      const fits = type.largestFree ? `${type.largestFree} on ${type.largestFreeNode}` : "none";
      const held = (states.held || 0) + (states.partly || 0);
      const number = (value) => make("td", {class: "number"}, String(value || 0));
      return make("tr", {},
        make("th", {scope: "row"}, type.instanceType || "unknown type"), number(type.nodes), number(type.closedNodes),
        number(type.devices), number(held), number(states.free), number(type.faults), make("td", {}, fits),
        make("td", {}, places));
    });
    byId("types").replaceChildren(...named(byId("types").parentNode.tHead, rows));
    const spread = data.types.flatMap((type) => {
      const most = Math.max(1, ...Object.values(type.nodesByLargestFree));
      return Object.entries(type.nodesByLargestFree).sort((a, b) => b[0] - a[0]).map(([size, count]) => {
        const button = make(size === "0" ? "span" : "button", {type: size === "0" ? "" : "button"}, `${size} free`);
        if (size !== "0") button.setAttribute("aria-label",
          `Show nodes of ${type.instanceType || "unknown type"} with at least ${size} free connected devices`);
        if (size !== "0") button.addEventListener("click", () => {
          byId("type").value = type.instanceType;
          byId("free").value = size;
          restart();
        });
        return make("tr", {},
          make("td", {}, type.instanceType || "unknown type"), make("td", {}, button),
          make("td", {}, make("progress", {max: most, value: count, "aria-hidden": "true"})),
          make("td", {class: "number"}, String(count)));
      });
    });
    byId("spread").replaceChildren(...named(byId("spread").parentNode.tHead, spread));
    const kept = byId("type").value;
    const options = [make("option", {value: "*"}, "all"),
      ...data.types.map((type) => {
        const option = make("option", {}, type.instanceType || "unknown type");
        option.value = type.instanceType;
        return option;
      })];
    byId("type").replaceChildren(...options);
    byId("type").value = data.types.some((type) => type.instanceType === kept) ? kept : "*";
    byId("strays").replaceChildren(...(data.strays.length
      ? [make("h2", {}, "Claims for devices that no node publishes now"),
        make("ul", {}, ...data.strays.map((text) => make("li", {}, text)))]
      : []));
  }

  // --- which nodes ----------------------------------------------------------------------------------------

  function wanted() {
    const words = byId("search").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const type = byId("type").value;
    const free = Number(byId("free").value) || 0;
    const attention = byId("show").value === "attention";
    return data.nodes.filter((node) =>
      (type === "*" || node.type === type)
      && (!free || (!node.closed && node.fits.length >= free))
      && (!attention || (node.closed && !node.onPlugin) || node.devices.some((device) => device.fault))
      && words.every((word) => node.text.includes(word)));
  }

  function restart() {
    shown = STEP;
    nodes();
  }

  function nodes() {
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : "";
    const all = wanted();
    const part = all.slice(0, shown);
    byId("count").textContent = all.length === data.nodes.length
      ? counted(all.length, "node") : `${all.length} of ${counted(data.nodes.length, "node")}`;
    const children = [];
    for (let index = 0; index < part.length;) {
      const server = part[index].server;
      if (!server) {
        children.push(card(part[index++]));
        continue;
      }
      const members = [];
      while (index < part.length && part[index].server === server) members.push(part[index++]);
      const free = members.filter((node) => node.whole).length;
      const heading = `UltraServer ${server}: ${free} of ${counted(members[0].size || members.length, "node")} wholly free`;
      const box = make("section", {class: "server"}, make("h3", {}, heading),
        make("div", {class: "cards"}, ...members.map(card)));
      box.setAttribute("aria-label", heading);
      children.push(box);
    }
    byId("nodes").replaceChildren(...children);
    const more = byId("more");
    more.hidden = all.length <= shown;
    more.textContent = `Show ${Math.min(STEP, all.length - shown)} more of ${all.length - shown}`;
    if (focused) {
      const again = [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused);
      if (again) again.focus({preventScroll: true});
    }
    highlight();
  }

  // --- one node -------------------------------------------------------------------------------------------

  function card(node) {
    const layout = data.layouts[node.layout];
    const heading = make("h3", {}, node.name);
    const detail = make("p", {class: "detail faint", "aria-live": "polite"}, "");
    const box = make("article", {class: layout.width > 400 ? "card wide" : "card"}, heading,
      make("p", {class: "faint"}, node.headline));
    box.setAttribute("aria-label", `${node.name}: ${node.headline}`);
    box.dataset.node = node.name;
    if (node.place) box.append(make("p", {class: "faint"}, node.place));
    if (node.note) box.append(make("p", {class: node.onPlugin ? "faint" : "note"}, node.note));
    if (node.devices.length) box.append(picture(node, layout, detail), detail);
    box.append(legend(node), table(node));
    return box;
  }

  function picture(node, layout, detail) {
    const size = {width: layout.width, height: layout.height, viewBox: `0 0 ${layout.width} ${layout.height}`};
    const svg = draw("svg", {...size, role: "group"});
    svg.setAttribute("aria-label", `Devices of ${node.name}. Arrow keys move from device to device.`);
    for (const [x1, y1, x2, y2, wrap] of layout.lines) {
      svg.append(draw("path", {class: wrap ? "link wrap" : "link", d: `M${x1} ${y1}L${x2} ${y2}`}));
    }
    const elements = node.devices.map((device, number) => {
      const [x, y] = layout.cells[number];
      const element = draw("g", {class: device.classes, role: "img", tabindex: number ? "-1" : "0"},
        draw("title", {}, device.title),
        draw("rect", {x, y, width: layout.cell[0], height: layout.cell[1], rx: 7}),
        draw("text", {class: "index", x: x + 14, y: y + 16}, String(device.index)),
        draw("text", {x: x + layout.cell[0] / 2 + 4, y: y + layout.cell[1] / 2 + 8}, device.mark));
      element.setAttribute("aria-label", device.title);
      element.dataset.key = `${node.name}/${device.index}`;
      element.dataset.claims = device.claims.map((claim) => node.claims[claim].id).join(" ");
      element.addEventListener("focus", () => { detail.textContent = device.title; });
      element.addEventListener("click", () => {
        element.focus();
        choose(device.claims.length ? node.claims[device.claims[0]].id : "");
      });
      svg.append(element);
      return element;
    });
    svg.addEventListener("keydown", (event) => move(event, elements, layout));
    return svg;
  }

  // One device of a node is in the tab order; arrow keys move to the nearest one in that direction.
  function move(event, elements, layout) {
    const here = elements.indexOf(document.activeElement);
    if (here < 0) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      elements[here].dispatchEvent(new MouseEvent("click"));
      return;
    }
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (!step) return;
    event.preventDefault();
    const [x, y] = layout.cells[here];
    let best = -1;
    let nearest = Infinity;
    layout.cells.forEach(([otherX, otherY], number) => {
      const along = (otherX - x) * step[0] + (otherY - y) * step[1];
      const aside = Math.abs((otherX - x) * step[1]) + Math.abs((otherY - y) * step[0]);
      if (along > 0 && along + 9 * aside < nearest) [best, nearest] = [number, along + 9 * aside];
    });
    if (best < 0) return;
    elements[here].setAttribute("tabindex", "-1");
    elements[best].setAttribute("tabindex", "0");
    elements[best].focus();
  }

  function legend(node) {
    const claims = node.claims.map((claim) => {
      const button = make("button", {type: "button", class: `c${claim.colour}`}, claim.letter);
      button.setAttribute("aria-label", `Show the devices of claim ${claim.name}`);
      button.dataset.claim = claim.id;
      button.dataset.key = `${node.name}/claim/${claim.id}`;
      button.addEventListener("click", () => choose(chosen === claim.id ? "" : claim.id));
      return make("li", {}, button, make("span", {}, claim.text));
    });
    const states = node.states.map((state) =>
      make("li", {}, make("span", {class: `state ${state.class}`, "aria-hidden": "true"}, state.mark),
        make("span", {}, state.text)));
    return make("ul", {class: "claims"}, ...claims, ...states);
  }

  // For screen readers, and for copying. It is made when it is opened: a thousand nodes have 16,000 rows.
  function table(node) {
    const box = make("details", {}, make("summary", {}, `Table of ${counted(node.devices.length, "device")}`));
    box.addEventListener("toggle", () => {
      if (!box.open || box.querySelector("table")) return;
      const head = ["Device", "State", "Claims", "Pods", "Taints"].map((text) => make("th", {scope: "col"}, text));
      const rows = node.devices.map((device) => {
        const claims = device.claims.map((claim) => node.claims[claim]);
        return make("tr", {}, make("th", {scope: "row"}, String(device.index)), make("td", {}, device.state),
          make("td", {}, claims.map((claim) => claim.name).join(", ")),
          make("td", {}, claims.flatMap((claim) => claim.pods).join(", ")), make("td", {}, device.taints.join(", ")));
      });
      const top = make("thead", {}, make("tr", {}, ...head));
      const inside = make("table", {}, top, make("tbody", {}, ...named(top, rows)));
      box.append(make("div", {class: "scroll"}, inside));
    });
    return box;
  }

  function choose(claim) {
    chosen = claim;
    highlight();
  }

  function highlight() {
    for (const box of document.querySelectorAll(".card")) {
      let any = false;
      for (const device of box.querySelectorAll(".device")) {
        const same = chosen !== "" && device.dataset.claims.split(" ").includes(chosen);
        device.classList.toggle("same", same);
        any = any || same;
      }
      box.classList.toggle("chosen", any);
      for (const button of box.querySelectorAll("[data-claim]")) {
        button.setAttribute("aria-pressed", String(button.dataset.claim === chosen));
      }
    }
  }

  // --- live -----------------------------------------------------------------------------------------------

  function tell() {
    byId("time").textContent = data.time;
  }

  function follow(seconds) {
    let tag = "";
    async function again() {
      if (document.visibilityState === "visible") {
        try {
          const answer = await fetch("data.json", tag ? {headers: {"If-None-Match": tag}} : {});
          if (answer.status === 200) {
            const next = await answer.json();
            tag = answer.headers.get("ETag") || "";
            data = next;
            tell();
            summary();
            nodes();
          }
          byId("live").textContent = answer.ok || answer.status === 304 ? ""
            : `The map is not current: the server answers ${answer.status}.`;
          if (data.stale) byId("live").textContent = `The map is not current: ${data.stale}`;
        } catch (error) {
          byId("live").textContent = "The map is not current: the server does not answer.";
        }
      }
      setTimeout(again, seconds * 1000);
    }
    setTimeout(again, seconds * 1000);
  }

  for (const id of ["search", "type", "free", "show"]) byId(id).addEventListener("input", restart);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("reset", () => setTimeout(restart));
  byId("more").addEventListener("click", () => {
    const before = shown;
    shown += STEP;
    nodes();
    const first = document.querySelectorAll(".card")[before];
    if (first) first.querySelector("[tabindex]")?.focus();
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") choose(""); });
  tell();
  summary();
  nodes();
  const interval = Number(document.body.dataset.interval);
  if (interval) follow(interval);
})();
