"use strict";
// The page of a running instance. Each event has what the instance is and what changed in the last second.

const byId = id => document.getElementById(id);
const kept = 120; // seconds of history

// number is a count or a rate with three digits and a unit prefix.
function number(x) {
  for (const [f, s] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (x >= f) return Number((x / f).toPrecision(3)) + s;
  }
  return x === 0 ? "0" : String(Number(x.toPrecision(3)));
}

function node(tag, props = {}, ...children) {
  const e = Object.assign(document.createElement(tag), props);
  e.append(...children);
  return e;
}

function svg(tag, attrs = {}, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

// History: the last values of a name.
const past = new Map();
function remember(name, value) {
  const list = past.get(name) || [];
  list.push(value);
  if (list.length > kept) list.shift();
  past.set(name, list);
}

function spark(name, unit = number) {
  const list = past.get(name) || [];
  const most = Math.max(1e-9, ...list), w = 100, h = 18;
  const d = list.length < 2 ? "" : list.map((v, i) => (i ? "L" : "M") + (w * (kept - list.length + i) / (kept - 1)).toFixed(1) + " " + (h - 1 - (h - 2) * v / most).toFixed(1)).join("");
  const s = svg("svg", {class: "spark", width: w, height: h, role: "img", "aria-label": "the last minutes, at most " + unit(most)});
  s.append(svg("title", {}, "the last minutes; at most " + unit(most)), svg("path", {d}));
  return s;
}

// grid shows rows in a table, whose cells it changes in place. A column is {name, cell(row) -> text or element, text, bad(row)}.
function grid(place, columns, rows, key) {
  let t = place.firstElementChild;
  if (!t || t.tagName !== "TABLE") {
    t = node("table", {}, node("thead", {}, node("tr")), node("tbody"));
    for (const c of columns) t.tHead.rows[0].append(node("th", {textContent: c.name, className: c.text ? "text" : "", scope: "col"}));
    place.replaceChildren(t);
    t.known = new Map();
  }
  const body = t.tBodies[0], seen = new Set();
  rows.forEach((row, i) => {
    const k = key(row);
    seen.add(k);
    let tr = t.known.get(k);
    if (!tr) {
      tr = node("tr", {}, ...columns.map(c => node("td", {className: c.text ? "text" : ""})));
      t.known.set(k, tr);
    }
    columns.forEach((c, n) => {
      const td = tr.cells[n], v = c.cell(row);
      if (v instanceof Node) {
        if (!(c.keep && td.firstChild)) td.replaceChildren(v);
      } else if (td.textContent !== v) td.textContent = v;
      if (c.bad) td.classList.toggle("bad", Boolean(c.bad(row)));
    });
    if (body.rows[i] !== tr) body.insertBefore(tr, body.rows[i] || null);
  });
  for (const [k, tr] of t.known) if (!seen.has(k)) { tr.remove(); t.known.delete(k); }
}

// time is a number of nanoseconds with a unit.
function time(ns) {
  for (const [f, u] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) if (ns >= f) return number(ns / f) + " " + u;
  return ns + " ns";
}

const col = (name, cell, more = {}) => ({name, cell, ...more});

// The graph.
const box = {w: 170, h: 46, dx: 270, dy: 84};
let drawn = "", parts = {links: new Map(), apps: new Map(), ports: new Map()};

// layers puts each node as many columns right of the first as there are links between them.
function layers(names, links) {
  const near = new Map(names.map(n => [n, []]));
  for (const l of links) {
    if (near.has(l.from) && near.has(l.to)) { near.get(l.from).push(l.to); near.get(l.to).push(l.from); }
  }
  const at = new Map();
  for (const first of names) {
    if (at.has(first)) continue;
    at.set(first, 0);
    for (const queue = [first]; queue.length;) {
      const n = queue.shift();
      for (const m of near.get(n)) if (!at.has(m)) { at.set(m, at.get(n) + 1); queue.push(m); }
    }
  }
  return at;
}

function drawGraph(g) {
  const spec = g.spec, ports = Object.keys(spec.ports || {}).sort(), apps = Object.keys(spec.apps || {}).sort();
  const links = (spec.links || []).map(text => {
    const [out, into] = text.split("->").map(s => s.trim());
    return {text, out, from: out.split(".")[0], to: into.split(".")[0]};
  });
  const names = [...ports, ...apps], at = layers(names, links), rows = [], place = new Map();
  for (const n of names) {
    const x = at.get(n), y = rows[x] = (rows[x] ?? -1) + 1;
    place.set(n, {x, y});
  }
  const tallest = Math.max(1, ...rows.map(r => r + 1)), pos = n => {
    const p = place.get(n), count = rows[p.x] + 1;
    return {x: 10 + p.x * box.dx, y: 24 + (p.y + (tallest - count) / 2) * box.dy};
  };
  const width = 20 + (Math.max(0, rows.length - 1)) * box.dx + box.w, height = 6 + tallest * box.dy;
  const s = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "graph"});
  parts = {links: new Map(), apps: new Map(), ports: new Map()};
  const between = new Map();
  for (const l of links) {
    if (!place.has(l.from) || !place.has(l.to)) continue;
    const a = pos(l.from), b = pos(l.to), pair = [l.from, l.to].sort().join("\n"), nth = between.get(pair) || 0;
    between.set(pair, nth + 1);
    const right = b.x >= a.x, far = Math.abs(place.get(l.to).x - place.get(l.from).x);
    const off = nth * 22 - 9;
    const x1 = a.x + (right && b.x > a.x ? box.w : b.x === a.x ? box.w : 0), x2 = b.x + (b.x > a.x ? 0 : box.w);
    const y1 = a.y + box.h / 2 + off, y2 = b.y + box.h / 2 + off;
    const bend = b.x === a.x ? 60 : far > 1 ? (x2 - x1) / 3 : (x2 - x1) / 2;
    const d = `M${x1} ${y1}C${x1 + bend} ${y1} ${b.x === a.x ? x2 + bend : x2 - bend} ${y2} ${x2} ${y2}`;
    const label = svg("text", {class: "soft", "text-anchor": "middle", x: (x1 + x2) / 2 + (b.x === a.x ? 45 : 0), y: (y1 + y2) / 2 + (nth % 2 ? 13 : -5)});
    const e = svg("g", {class: "link", tabindex: 0, role: "button", "aria-label": "link " + l.text},
      svg("path", {d, class: "hit"}), svg("path", {d, class: "wire", "marker-end": "url(#tip)"}), label);
    choose(e, () => showLink(l));
    parts.links.set(l.text, {e, label});
    s.append(e);
  }
  s.prepend(svg("defs", {}, svg("marker", {id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto"},
    svg("path", {d: "M0 1L7 4L0 7z", fill: "context-stroke", stroke: "none"}))));
  for (const n of names) {
    const p = pos(n), isPort = n in (spec.ports || {}), kind = isPort ? spec.ports[n].kind + " " + (spec.ports[n].args?.dev || "") : spec.apps[n].kind;
    const bad = svg("text", {class: "bad", x: p.x, y: p.y + box.h + 13}), below = svg("text", {class: "soft", x: p.x + 10, y: p.y + 36});
    const title = svg("text", {x: p.x + 10, y: p.y + 18});
    title.append(n.length > 22 ? n.slice(0, 21) + "…" : n);
    if (!isPort && n !== kind && n.length + kind.length < 22) title.append(svg("tspan", {class: "soft", dx: 8}, kind));
    const e = svg("g", {class: isPort ? "port" : "app", tabindex: 0, role: "button", "aria-label": (isPort ? "port " : "app ") + n},
      svg("title", {}, n + ": " + kind), svg("rect", {x: p.x, y: p.y, width: box.w, height: box.h, rx: isPort ? 14 : 4}), title, below, bad);
    below.textContent = isPort ? kind : "";
    choose(e, () => isPort ? tracePort(n) : showApp(n));
    (isPort ? parts.ports : parts.apps).set(n, {e, below, bad, kind});
    s.append(e);
  }
  byId("graph").replaceChildren(s);
}

function choose(e, f) {
  e.addEventListener("click", f);
  e.addEventListener("keydown", k => { if (k.key === "Enter" || k.key === " ") { k.preventDefault(); f(); } });
}

function chosen(title, ...body) {
  byId("chosen").hidden = false;
  byId("h-chosen").textContent = title;
  byId("chosen-body").replaceChildren(...body);
}

async function ask(path, params) {
  const r = await fetch(path + "?" + new URLSearchParams(params));
  if (!r.ok) throw new Error((await r.text()).trim());
  return r.json();
}

// change has the instance changed, and says why not.
async function change(path, what) {
  const r = await fetch(path, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(what)});
  const text = (await r.text()).trim();
  if (!r.ok) throw new Error(text);
  return JSON.parse(text);
}

// form is a line to write, and what to do with it: done(line) says what has happened.
function form(label, example, button, done) {
  const line = node("input", {type: "text", placeholder: example, spellcheck: false, autocomplete: "off"}), said = node("p", {className: "hint", role: "status"});
  const f = node("form", {className: "change"}, node("label", {}, label + " ", line), " ", node("button", {textContent: button}), said);
  f.addEventListener("submit", async e => {
    e.preventDefault();
    said.className = "hint";
    said.textContent = "asked";
    try {
      said.textContent = await done(line.value.trim());
      line.value = "";
    } catch (why) {
      said.className = "hint bad";
      said.textContent = why.message;
    }
  });
  return f;
}

async function trace(title, params) {
  chosen(title, node("p", {textContent: "waiting for a frame, 10 s at most"}));
  try {
    const t = await ask("trace", params), start = t.lines?.[0]?.at || 0;
    chosen(title, node("pre", {textContent: (t.lines || []).map(l => ((l.at - start) / 1000).toFixed(1).padStart(9) + " µs  " + l.node.padEnd(16) + " " + l.text).join("\n") || "nothing was written down"}),
      node("button", {type: "button", textContent: "The next one", onclick: () => trace(title, params)}));
  } catch (e) {
    chosen(title, node("p", {textContent: e.message}), node("button", {type: "button", textContent: "Try again", onclick: () => trace(title, params)}));
  }
}

const tracePort = name => trace("A frame that port " + name + " receives", {port: name, reason: ""});
const traceReason = (app, reason) => trace(`A frame with ${app}: ${reason}`, {port: "", reason});

function showLink(l) {
  chosen("Link " + l.text, node("p", {}, node("a", {href: "capture?" + new URLSearchParams({at: l.out}), download: "", textContent: "Capture what crosses it"}),
    ": 10 s, at most 16 MB, as pcapng for Wireshark"));
}

let newest = null;
const argsOf = app => Object.entries(app?.args || {}).map(([k, v]) => k + "=" + v).join("\n") || "no arguments: all are as quillon nf describe says";
function showApp(name) {
  const app = newest.graph.spec.apps[name], tables = node("div", {className: "scroll"});
  chosen("App " + name + ": " + app.kind, node("pre", {id: "args", textContent: argsOf(app)}), tables);
  byId("args").app = name;
  if (app.kind === "p4") showP4(name, tables);
  if (newest.change) byId("chosen-body").append(form("Arguments", "NAME=VALUE ...", "Set", async line => {
    const args = Object.fromEntries(line.split(/\s+/).map(a => [a.split("=", 1)[0], a.slice(a.indexOf("=") + 1)]));
    return (await change("set", {app: name, args})).text.trim() || "nothing has changed";
  }));
}

async function showP4(app, place) {
  try {
    const report = await ask("p4", {app});
    const pick = name => node("button", {type: "button", className: "plain", textContent: name, title: "read it", onclick: () => pickTable(app, name)});
    grid(place, [col("table", r => pick(r.name), {text: true}), col("entries", r => number(r.entries)), col("of", r => number(r.size)), col("full", r => bar(r.size ? r.entries / r.size : 0), {text: true})],
      report.tables || [], r => r.name);
    if (!report.tables?.length) place.replaceChildren(node("p", {textContent: "no program yet, or one without tables"}));
  } catch (e) {
    place.replaceChildren(node("p", {textContent: e.message}));
  }
}

function show(e) {
  const state = byId("state");
  document.body.classList.toggle("gone", Boolean(e.error));
  if (e.error) {
    state.className = "bad";
    state.textContent = "no instance: " + e.error;
    return;
  }
  newest = e;
  const g = e.graph, text = JSON.stringify(g.spec);
  document.title = g.name + " · quillon";
  byId("name").textContent = g.name;
  state.className = "";
  state.textContent = `${g.workers} worker${g.workers === 1 ? "" : "s"}` + (g.notes?.length ? " · " + g.notes.join(" · ") : "");
  if (text !== drawn) {
    drawn = text;
    drawGraph(g);
    for (const id of ["ports", "apps", "growing"]) byId(id).replaceChildren();
    listTables();
  }
  const args = byId("args");
  if (args) args.textContent = argsOf(g.spec.apps[args.app]);
  if (e.rates) showRates(e.rates);
}

function showRates(v) {
  for (const l of v.links) {
    const p = parts.links.get(l.link);
    if (!p) continue;
    p.label.textContent = number(l.pps) + "/s" + (l.dropped_pps ? ` −${number(l.dropped_pps)}` : "") + (l.depth ? ` (${l.depth} wait)` : "");
    p.e.classList.toggle("busy", l.pps > 0);
  }
  const lost = new Map();
  for (const c of v.growing) if (c.drops) lost.set(c.app, [...(lost.get(c.app) || []), c]);
  for (const a of v.apps) {
    remember("app " + a.app, a.pps);
    const p = parts.apps.get(a.app);
    if (!p) continue;
    p.below.textContent = number(a.pps) + "/s · " + number(a.ns_per_packet) + " ns" + (a.held ? ` · ${number(a.held)} held` : "");
    const worst = lost.get(a.app)?.[0];
    p.bad.textContent = worst ? `${worst.name} ${number(worst.per_second)}/s` : "";
  }
  for (const q of v.ports) {
    remember("port " + q.port, q.rx_pps);
    const p = parts.ports.get(q.port);
    if (!p) continue;
    p.below.textContent = p.kind;
    p.bad.textContent = q.missed_pps ? `missed ${number(q.missed_pps)}/s` : "";
  }
  const stay = byId("stay");
  remember("stay", v.stay.p99_ns);
  if (v.stay.max_ns) stay.replaceChildren(`Frames stay ${time(v.stay.p50_ns)} (half of them), ${time(v.stay.p99_ns)} (99 %), ${time(v.stay.max_ns)} (all) `, spark("stay", time));
  else stay.textContent = "";
  grid(byId("ports"), [col("port", r => r.port, {text: true}), col("received/s", r => number(r.rx_pps)), col("bit/s", r => number(r.rx_bit_per_s)), col("", r => spark("port " + r.port)),
    col("sent/s", r => number(r.tx_pps)), col("bit/s", r => number(r.tx_bit_per_s)), col("dropped/s", r => number(r.dropped_pps), {bad: r => r.dropped_pps > 0}),
    col("bypassed/s", r => number(r.bypassed_pps)), col("missed/s", r => number(r.missed_pps), {bad: r => r.missed_pps > 0})], v.ports, r => r.port);
  grid(byId("apps"), [col("app", r => r.app, {text: true}), col("packets/s", r => number(r.pps)), col("", r => spark("app " + r.app)), col("a call", r => number(r.packets_per_call)),
    col("ns/packet", r => number(r.ns_per_packet)), col("held", r => number(r.held))], v.apps, r => r.app);
  const pps = new Map(v.apps.map(a => [a.app, a.pps]));
  grid(byId("growing"), [col("app", r => r.app, {text: true}), col("name", r => r.group === "reason" ?
    node("button", {type: "button", className: "plain", textContent: r.name, title: "follow the next one", onclick: () => traceReason(r.app, r.name)}) : r.name, {text: true, keep: true}),
    col("/s", r => number(r.per_second), {bad: r => r.drops}), col("of packets", r => pps.get(r.app) ? (100 * r.per_second / pps.get(r.app)).toFixed(1) + " %" : ""), col("in all", r => number(r.total))],
    v.growing.slice(0, 40), r => r.app + "." + r.group + "." + r.name);
  showBoards(v.boards || []);
}

function bar(x) {
  const b = node("span", {className: "bar"});
  b.style.width = 6 * Math.min(1, Math.max(0, x)) + "em";
  return node("span", {}, node("span", {className: "track"}, b), (100 * x).toFixed(0) + " %");
}

// Boards: SuperNICs, one a worker.
const boards = new Map();
function showBoards(list) {
  const section = byId("boards");
  section.hidden = list.length === 0;
  for (const b of list) {
    const name = `${b.app}, worker ${b.worker}`;
    let p = boards.get(name);
    if (!p) {
      const place = () => node("div", {className: "scroll"});
      p = {head: node("p"), regions: place(), tenants: place(), dags: place(), events: node("pre")};
      boards.set(name, p);
      section.append(node("h2", {textContent: "SuperNIC " + name}), p.head, node("h3", {textContent: "Regions"}), p.regions, node("h3", {textContent: "Tenants"}), p.tenants,
        node("h3", {textContent: "DAGs"}), p.dags, node("h3", {textContent: "What happened to regions"}), p.events);
    }
    remember("inside " + name, b.board.inside_packets);
    p.head.replaceChildren(`${number(b.board.inside_packets)} packets inside `, spark("inside " + name), ` · ${number(b.board.stored_bytes)}B stored · worker ${(100 * b.board.worker_busy).toFixed(0)} % busy · ${b.board.chains_waiting} chains wait for a region`);
    grid(p.regions, [col("region", r => String(r.region), {text: true}), col("state", r => r.state, {text: true}), col("chain", r => r.chain || "", {text: true}), col("why", r => r.cause || "", {text: true}),
      col("since", r => number(r.since_s) + " s"), col("load", r => bar(r.load), {text: true}), col("inside", r => number(r.inside_packets)), col("waiting", r => number(r.waiting_packets))], b.regions || [], r => r.region);
    for (const t of b.tenants || []) remember("tenant " + name + t.tenant, t.share);
    grid(p.tenants, [col("tenant", r => r.tenant, {text: true}), col("weight", r => number(r.weight)), col("share", r => bar(r.share), {text: true}), col("", r => spark("tenant " + name + r.tenant)),
      col("granted", r => bar(r.grant), {text: true}), col("kept from more by", r => r.bottleneck || "", {text: true}), col("inside", r => number(r.inside_packets))], (b.tenants || []).slice(0, 100), r => r.tenant);
    grid(p.dags, [col("dag", r => String(r.uid), {text: true}), col("tenant", r => r.tenant, {text: true}), col("runs", r => r.run, {text: true}), col("state", r => r.state, {text: true}),
      col("offered bit/s", r => number(r.offered_bit_per_s)), col("packets", r => number(r.packets)), col("throttled", r => number(r.throttled), {bad: r => r.throttled > 0})], (b.dags || []).slice(0, 100), r => r.uid);
    p.events.textContent = (b.events || []).slice(-8).map(x => `${number(x.ago_s)} s ago: ${x.text}`).join("\n") || "nothing yet";
  }
}

// Tables.
async function listTables() {
  try {
    const list = await ask("tables", {});
    byId("tables-section").hidden = list.length === 0;
    byId("tables").replaceChildren(...list.map(t => Object.assign(node("option", {textContent: `${t.app} ${t.table}: ${t.help}`}), {value: JSON.stringify([t.app, t.table, t.may])})));
    byId("table").replaceChildren();
  } catch (e) {
    byId("tables-section").hidden = true;
  }
}

async function readTable() {
  const [app, table, may] = JSON.parse(byId("tables").value), place = byId("table"), ways = newest?.change ? may : [];
  // twice: the first click asks.
  const remove = entry => {
    const b = node("button", {type: "button", className: "plain", textContent: "delete"});
    b.addEventListener("click", async () => {
      if (b.textContent === "delete") { b.textContent = "delete it?"; return; }
      try {
        await change("change", {app, table, what: "delete", entry: {match: entry.match, priority: entry.priority}});
        readTable();
      } catch (e) { b.replaceWith(node("span", {className: "bad", textContent: e.message})); }
    });
    return b;
  };
  try {
    const t = await ask("table", {app, table}), fields = [...new Set(t.entries.flatMap(e => Object.keys(e.match || {})))];
    place.replaceChildren();
    grid(place, [...fields.map(f => col(f, e => e.match?.[f] ?? (e.default ? "" : "any"), {text: true})), col("priority", e => e.priority ? String(e.priority) : ""),
      col("action", e => (e.default ? "by default: " : "") + (e.action || ""), {text: true}),
      col("parameters", e => Object.entries(e.params || {}).map(([k, v]) => k + "=" + v).join(" "), {text: true}),
      ...(t.entries.some(e => e.counts) ? [col("packets", e => number(e.counts?.packets || 0)), col("bytes", e => number(e.counts?.bytes || 0))] : []),
      ...(ways.includes("delete") ? [col("", e => e.default ? "" : remove(e), {text: true})] : [])], t.entries, e => JSON.stringify(e));
    if (t.more) place.append(node("p", {className: "hint", textContent: "the first " + t.entries.length + "; quillon table show has all"}));
    if (!t.entries.length) place.replaceChildren(node("p", {textContent: "no entries"}));
    for (const what of ["insert", "modify", "default"]) {
      if (ways.includes(what)) place.append(form(what, what === "default" ? "ACTION PARAM=VALUE ..." : "KEY=VALUE ... priority=N ACTION PARAM=VALUE ...", "Do it", async words => {
        await change("change", {app, table, what, words});
        setTimeout(readTable, 0);
        return "done";
      }));
    }
  } catch (e) {
    place.replaceChildren(node("p", {textContent: e.message}));
  }
}
byId("reload").addEventListener("click", readTable);

// pickTable reads a table of an app, which may have come with a program after the page was loaded.
async function pickTable(app, table) {
  await listTables();
  byId("tables").value = [...byId("tables").options].map(o => o.value).find(v => JSON.parse(v).slice(0, 2).join() === app + "," + table);
  await readTable();
  byId("tables-section").scrollIntoView();
}

const source = new EventSource("events");
source.onmessage = m => show(JSON.parse(m.data));
source.onerror = () => {
  document.body.classList.add("gone");
  byId("state").className = "bad";
  byId("state").textContent = "the page's server is gone; it is tried again";
};
