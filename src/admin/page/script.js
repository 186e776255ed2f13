"use strict";

// The live page. What it shows comes from /events (src/admin/events.rs). In the order of this file:
//   words and numbers, the feed, what is known, the sea (canvas), servers, figures, decisions, the admin token, keys.
//
// Names and reasons come from outside: they enter the page as text, never as HTML.

const $ = (id) => document.getElementById(id);

/** An element with attributes, properties that begin with a dot, and children. */
function el(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "circle", "line"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key.startsWith("--")) made.style.setProperty(key, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ------------------------------------------------------------------------------------------------ words and numbers

const whole = new Intl.NumberFormat("en");

/** 950, 3.4k, 33k, 1.2M */
function short(number) {
  if (number === undefined || number === null) return "–";
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= unit * 0.9995) {
      const value = number / unit;
      return (value < 9.95 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)) + letter;
    }
  }
  return String(Math.round(number));
}

function seconds(value) {
  if (value === undefined || value === null) return "–";
  if (value < 0.0005) return "0 ms";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

const words = (name) => String(name).replaceAll("_", " ");
const plural = (count, one, many) => `${whole.format(count)} ${count === 1 ? one : many}`;

/** Seconds since the page was opened. */
const now = () => performance.now() / 1000;

/** What a quantile is, of numbers that are sorted: the smallest that so many are not above. */
function quantile(sorted, q) {
  return sorted.length ? sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)] : undefined;
}

// ------------------------------------------------------------------------------------------------ the feed

/** Silence after which the connection counts as dead: the status comes twice a second. */
const SILENCE = 8;
const FIRST_PAUSE = 0.5;
const LONGEST_PAUSE = 5;
const TOKEN = "tidegate.token";

const feed = { state: "wait", pause: FIRST_PAUSE, lastByte: 0, abort: null, woken: null };

function authorization() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function connection(state, text) {
  feed.state = state;
  document.body.dataset.state = state;
  setText($("connection-text"), text);
}

/** Waits, or is woken. */
function pause(duration) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, duration * 1000);
    feed.woken = () => { clearTimeout(timer); resolve(); };
  });
}

/** Reads events for as long as the page lives. EventSource would do, but cannot send a token. */
async function follow() {
  for (;;) {
    let lost = "the connection was closed";
    try {
      feed.abort = new AbortController();
      feed.lastByte = now();
      const response = await fetch("/events", {
        headers: { Accept: "text/event-stream", ...authorization() },
        cache: "no-store",
        credentials: "omit",
        signal: feed.abort.signal,
      });
      if (response.status === 401 || response.status === 403) {
        connection("lost", "the admin token is needed");
        await askForToken(sessionStorage.getItem(TOKEN) ? "The token was not accepted." : "This listener shows nothing without its token.");
        continue;
      }
      if (!response.ok) throw new Error(`the answer was ${response.status}`);
      await read(response.body);
    } catch (error) {
      if (error.name !== "AbortError") lost = error.message;
    }
    model.flights.clear();
    connection("lost", "not connected, trying again");
    $("connection").title = lost;
    await pause(feed.pause * (0.8 + 0.4 * Math.random()));
    feed.pause = Math.min(feed.pause * 1.6, LONGEST_PAUSE);
  }
}

/** Takes a stream of server-sent events apart. */
async function read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    feed.lastByte = now();
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      let name = "message";
      let data = "";
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) take(name, JSON.parse(data));
    }
  }
}

setInterval(() => {
  if (feed.abort && feed.state === "live" && now() - feed.lastByte > SILENCE) feed.abort.abort();
}, 1000);

function take(name, data) {
  switch (name) {
    case "hello": return hello(data);
    case "status": return status(data);
    case "recent": return data.forEach((record) => ended(record, true));
    case "placed": return placed(data);
    case "ended": return ended(data, false);
    case "lagged": model.missed += data.missed; return undefined;
    default: return undefined; // of a newer server
  }
}

// ------------------------------------------------------------------------------------------------ what is known

/** What the figures are about, in seconds: as far back as is known, within these bounds. */
const WINDOW = 300;
const SHORTEST = 60;
const SLOTS = 30;
/** What "now" is in a rate. */
const LATELY = 10;
/** So many records are kept within the window; a server that ends more of them has a shorter one. */
const MOST_RECORDS = 30000;
const MOST_DECISIONS = 300;

const model = {
  changes: "closed",
  opened: now(),
  status: null,
  classes: [{ name: "all", below: Infinity }],
  crosses: false,      // whether requests of one group's length may go to another
  records: [],         // {at, tokens, ttft} of requests that are over, by their end
  lengths: [],         // {at, tokens} of requests, by their beginning
  crossings: [],       // {at, from, to}
  queue: [],           // {at, waiting}
  decisions: [],       // the newest first
  byId: new Map(),     // decisions by request
  seen: new Set(),     // requests that have ended and are in the figures
  flights: new Map(),  // dots by request
  missed: 0,
  decided: 0,
};

function hello(data) {
  model.changes = data.changes;
  model.flights.clear();
  $("token-button").hidden = data.changes !== "token" && !sessionStorage.getItem(TOKEN);
}

function status(data) {
  const before = model.status;
  feed.pause = FIRST_PAUSE;
  if (before && before.start_time_seconds !== data.start_time_seconds) {
    say("Tidegate was restarted");
    model.flights.clear();
    model.seen.clear();
  }
  model.status = data;
  connection(data.ready === false ? "wait" : "live", data.ready === false ? "stopping" : "live");
  classify(data);
  const at = now();
  model.queue.push({ at, waiting: waitingIn(data) });
  prune(model.queue, at);
  showServers(data);
  showFacts(data);
}

function waitingIn(data) {
  return Math.max(data.groups.reduce((sum, group) => sum + group.waiting, 0), data.work?.held ?? 0);
}

/** Which lengths are a class: the ranges of the groups, else what the policy by work takes for long. */
function classify(data) {
  const ranges = data.policy.buckets;
  let classes = [{ name: "all", below: Infinity }];
  if (ranges.length > 1) {
    classes = ranges.map((range, index) => ({
      name: data.groups[index]?.name ?? `group ${index + 1}`,
      below: index + 1 < ranges.length ? range.to_tokens : Infinity,
    }));
  } else if (data.work) {
    const below = data.policy.by_work?.long_from_tokens ?? longFrom(data.work);
    if (below) classes = [{ name: "short", below, learned: !data.policy.by_work?.long_from_tokens }, { name: "long", below: Infinity }];
  }
  const before = model.classes;
  const crosses = ranges.length > 1;
  const isNew = classes.length !== before.length || crosses !== model.crosses || classes.some((one, index) => one.name !== before[index].name);
  const isElsewhere = classes.some((one, index) => one.below !== before[index]?.below);
  [model.classes, model.crosses] = [classes, crosses];
  if (isNew) showClasses();
  else if (isElsewhere && sea.histogram) showAxis();
}

/** How many tokens have the prefill from which on a request is long: floor + b n + d n^2 / 2 = seconds, solved for n. */
function longFrom(work) {
  const engine = work.engines[0];
  if (!engine) return null;
  const [b, d] = [engine.microseconds_per_token / 1e6, engine.nanoseconds_per_token_pair / 1e9];
  const left = work.long_from_prefill_seconds - engine.floor_seconds;
  if (left <= 0) return null;
  return Math.round(d > 0 ? (Math.sqrt(b * b + 2 * d * left) - b) / d : left / b);
}

function classOf(tokens) {
  const index = model.classes.findIndex((one) => tokens < one.below);
  return index < 0 ? model.classes.length - 1 : index;
}

/** The last class always has the colour of long, whatever stands between. */
function colourOf(index) {
  const last = model.classes.length - 1;
  if (index === 0) return "--class-0";
  if (index >= last) return "--class-1";
  return ["--class-2", "--class-3"][(index - 1) % 2];
}

function prune(list, at) {
  let gone = 0;
  while (gone < list.length && list[gone].at < at - WINDOW) gone += 1;
  gone = Math.max(gone, list.length - MOST_RECORDS);
  if (gone > 0) list.splice(0, gone);
}

/** The length of a request, as `placed` or as `ended` says it. */
const tokensOf = (event) => event.tokens ?? event.estimated_tokens ?? event.prompt_tokens ?? null;

function placed(event) {
  const at = now();
  const tokens = tokensOf(event);
  const [home, to] = [event.standard_group, event.group];
  if (tokens !== null && event.attempt <= 1) model.lengths.push({ at, tokens });
  if (home !== to) model.crossings.push({ at, from: home, to });
  model.decided += 1;
  const decision = {
    id: event.request_id, when: new Date(), tokens, home, group: to, server: event.server, reason: event.reason,
    waited: event.waited_s, attempt: event.attempt, words: event.words ?? [], record: null, row: null,
  };
  remember(decision);
  launch(decision, at);
}

function ended(record, past) {
  if (model.seen.has(record.request_id)) return;
  model.seen.add(record.request_id);
  if (model.seen.size > 2 * MOST_RECORDS) model.seen.clear();
  const when = new Date(record.time);
  // How long ago by its own clock, which need not be this one's: of the past only the order and the distances count.
  const age = past ? Math.max(0, (Date.now() - when.getTime()) / 1000 - record.duration_s) : 0;
  const at = now() - age;
  const tokens = tokensOf(record);
  if (age < WINDOW) {
    if (tokens !== null) model.records.push({ at, tokens, ttft: record.end === "complete" || record.ttft_s ? record.ttft_s : undefined });
    if (tokens !== null && !model.byId.has(record.request_id)) model.lengths.push({ at, tokens });
  }
  let decision = model.byId.get(record.request_id);
  if (!decision) {
    // Placed before this page watched, or so long ago that its row is gone; only what no server got is new.
    if (!past && record.server) return land(record.request_id);
    const home = record.redirected_from ?? record.group;
    decision = {
      id: record.request_id, when, tokens, home, group: record.redirected_from ? groupOf(record.server) : record.group,
      server: record.server, reason: record.reason ?? record.rejected, waited: record.waited_s, attempt: record.attempts,
      words: null, record: null, row: null,
    };
    remember(decision);
  }
  decision.record = record;
  decision.stale = true;
  land(record.request_id);
}

function groupOf(server) {
  return model.status?.groups.find((group) => group.servers.some((one) => one.name === server))?.name;
}

function remember(decision) {
  model.decisions.unshift(decision);
  model.byId.set(decision.id, decision);
  while (model.decisions.length > MOST_DECISIONS) {
    const old = model.decisions.pop();
    if (model.byId.get(old.id) === old) model.byId.delete(old.id);
  }
}

// ------------------------------------------------------------------------------------------------ the sea

/** Everything that moves is drawn on one canvas behind the words. */
const sea = {
  canvas: $("sea"),
  pen: $("sea").getContext("2d"),
  width: 0, height: 0,
  histogram: null,     // rectangles, relative to the canvas
  basins: new Map(),   // by group: {rect, level, surface}
  servers: new Map(),  // by server: x of its card and the group
  gates: [],           // {rect, open}
  scale: 1,
  colours: {},
  still: false,
  stacked: false,
};

/** A basin is never quite dry, or nobody would see that it is one; full, it leaves room for the words above. */
const [DRY, FULL] = [0.06, 0.62];
const waterline = (basin) => DRY + (FULL - DRY) * basin.level;


const MOST_DOTS = 420;
const LEAST_TOKENS = 16;

function mostTokens() {
  const ranges = model.status?.policy.buckets ?? [];
  const last = ranges.length ? ranges[ranges.length - 1].to_tokens : 131072;
  // Whole half octaves, so that a threshold which is a power of two falls between two bars.
  const octaves = Math.ceil(2 * Math.log2((Math.min(Math.max(last, 32768), 2 ** 22) * 1.4) / LEAST_TOKENS)) / 2;
  return LEAST_TOKENS * 2 ** octaves;
}

/** Where a length is on the axis, from 0 to 1. */
function onAxis(tokens) {
  const most = Math.log2(mostTokens() / LEAST_TOKENS);
  return Math.min(1, Math.max(0, Math.log2(Math.max(tokens, 1) / LEAST_TOKENS) / most));
}

const radiusOf = (tokens) => 2.2 + 7.5 * Math.pow(onAxis(tokens ?? 0), 1.6);

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "line", "card", "water-1", "water-2", "foam", "class-0", "class-1", "class-2", "class-3", "crossing", "bad", "warn"]) {
    sea.colours[`--${name}`] = style.getPropertyValue(`--${name}`).trim();
  }
}

/** Looks where the words are, for the canvas to draw around them. */
function measure() {
  const frame = $("estuary").getBoundingClientRect();
  const border = 1;
  const place = (node) => {
    const rect = node.getBoundingClientRect();
    return { x: rect.left - frame.left - border, y: rect.top - frame.top - border, w: rect.width, h: rect.height };
  };
  sea.width = frame.width - 2 * border;
  sea.height = frame.height - 2 * border;
  // Phones have many pixels; no picture is worth a canvas of a hundred megabytes.
  const density = Math.min(devicePixelRatio || 1, 2, Math.sqrt(9e6 / Math.max(1, sea.width * sea.height)));
  const [w, h] = [Math.round(sea.width * density), Math.round(sea.height * density)];
  if (sea.canvas.width !== w || sea.canvas.height !== h) {
    sea.canvas.width = w;
    sea.canvas.height = h;
    sea.canvas.style.width = `${sea.width}px`;
    sea.canvas.style.height = `${sea.height}px`;
  }
  sea.pen.setTransform(density, 0, 0, density, 0, 0);
  sea.histogram = place($("histogram"));
  for (const node of document.querySelectorAll(".basin")) {
    const name = node.dataset.group;
    const basin = sea.basins.get(name) ?? { level: 0, ripple: 0 };
    basin.rect = place(node.querySelector(".water"));
    sea.basins.set(name, basin);
    for (const server of node.querySelectorAll(".server")) {
      const rect = place(server);
      sea.servers.set(server.dataset.server, { x: rect.x + rect.w / 2, group: name });
    }
  }
  sea.gates = [...document.querySelectorAll(".gate")].map((node) => ({
    rect: place(node), pair: [node.dataset.before, node.dataset.after], open: 0,
  }));
  showAxis();
}

/** The numbers below the histogram, and the threshold between them. */
function showAxis() {
  const axis = $("axis");
  const width = sea.histogram.w;
  const marks = model.classes.filter((one) => one.below !== Infinity).map((one) => ({
    at: onAxis(one.below) * width,
    text: `${one.learned ? "about " : ""}${short(one.below)} tokens`,
    threshold: true,
  }));
  for (let tokens = 16; tokens <= mostTokens(); tokens *= 8) {
    const at = onAxis(tokens) * width;
    if (marks.every((mark) => Math.abs(mark.at - at) > (mark.threshold ? 82 : 44))) marks.push({ at, text: short(tokens) });
  }
  axis.replaceChildren(...marks.map((mark) => {
    const half = mark.threshold ? 52 : 14;
    const node = el("span", mark.threshold ? { class: "threshold" } : {}, mark.text);
    node.style.left = `${Math.min(width - half, Math.max(half, mark.at))}px`;
    return node;
  }));
}

/** The level of each basin is its load, all on one scale: what the gates go by is how much they differ. */
function levels(data) {
  const most = Math.max(1, ...data.groups.map((group) => group.load_tokens));
  const step = Math.pow(10, Math.floor(Math.log10(most)));
  const nice = [1, 2, 5, 10].map((factor) => factor * step).find((value) => value >= most * 1.05) ?? 20 * step;
  // It rises at once and falls slowly, so that a level is not mistaken for a change of scale.
  if (nice > sea.scale || !sea.scaleAt) [sea.scale, sea.scaleAt] = [nice, now()];
  else if (nice === sea.scale) sea.scaleAt = now();
  else if (now() - sea.scaleAt > 20) [sea.scale, sea.scaleAt] = [nice, now()];
  for (const group of data.groups) {
    const basin = sea.basins.get(group.name);
    if (basin) basin.target = Math.min(1, group.load_tokens / sea.scale);
  }
}

function launch(decision, at) {
  const target = sea.servers.get(decision.server);
  if (!target || model.flights.has(decision.id)) return;
  const crosses = decision.home !== decision.group && sea.basins.has(decision.home);
  const crowded = model.flights.size >= MOST_DOTS;
  $("sampled").hidden = !crowded;
  if (crowded && !(crosses && model.flights.size < MOST_DOTS * 1.2)) return;
  model.flights.set(decision.id, {
    begun: at, crosses, home: decision.home, group: decision.group, server: decision.server,
    axis: onAxis(decision.tokens ?? 0), r: radiusOf(decision.tokens), colour: colourOf(classOf(decision.tokens ?? 0)),
    seed: Math.random(), landed: false, over: null, trail: [],
  });
  if (crosses) {
    const gate = sea.gates.find((one) => one.pair.includes(decision.group) && one.pair.includes(decision.home));
    if (gate) gate.opened = at;
  }
}

function land(id) {
  const flight = model.flights.get(id);
  if (flight) flight.over = now();
}

const ease = (t) => (t < 0.5 ? 2 * t * t : 1 - Math.pow(-2 * t + 2, 2) / 2);

/** Where a dot is: it falls from its length into its basin, over the gate if it crosses, then rests above its server. */
function whereIs(flight, at) {
  const target = sea.servers.get(flight.server);
  const basin = sea.basins.get(flight.group);
  if (!target || !basin?.rect) return null;
  const { rect } = basin;
  const from = { x: sea.histogram.x + flight.axis * sea.histogram.w, y: sea.histogram.y + sea.histogram.h };
  const surface = rect.y + rect.h * (1 - waterline(basin));
  const spread = Math.min(60, rect.w / 10);
  const x = Math.min(rect.x + rect.w - 12, Math.max(rect.x + 12, target.x + (flight.seed - 0.5) * 2 * spread));
  const depth = Math.max(rect.h * 0.06, (rect.y + rect.h - surface) * (0.2 + 0.65 * ((flight.seed * 7.13) % 1)));
  const rest = { x, y: Math.min(rect.y + rect.h - flight.r - 3, surface + depth) };
  if (sea.still) return rest;
  const duration = flight.crosses ? 1.9 : 1.15;
  const t = (at - flight.begun) / duration;
  if (t >= 1) return { x: rest.x + 1.5 * Math.sin(at * 0.9 + flight.seed * 40), y: rest.y + 2 * Math.sin(at * 1.3 + flight.seed * 60) };
  if (!flight.crosses) {
    const s = ease(t);
    return { x: from.x + (rest.x - from.x) * Math.min(1, s * 1.15), y: from.y + (rest.y - from.y) * s * s };
  }
  // First towards its own basin, then over the gate.
  const home = sea.basins.get(flight.home);
  if (!home?.rect) return rest;
  const over = { x: Math.min(home.rect.x + home.rect.w - 20, Math.max(home.rect.x + 20, from.x)), y: home.rect.y + home.rect.h * (1 - waterline(home)) - 16 };
  if (t < 0.42) {
    const s = ease(t / 0.42);
    return { x: from.x + (over.x - from.x) * s, y: from.y + (over.y - from.y) * s };
  }
  const s = ease((t - 0.42) / 0.58);
  const arch = sea.stacked ? 0 : Math.sin(Math.PI * s) * 46;
  const sway = sea.stacked ? Math.sin(Math.PI * s) * 40 : 0;
  return { x: over.x + (rest.x - over.x) * s + sway, y: over.y + (rest.y - over.y) * s - arch };
}

let drawnAt = 0;
function draw() {
  const at = now();
  const passed = Math.min(0.1, at - drawnAt);
  drawnAt = at;
  const { pen, colours } = sea;
  if (!sea.histogram) return;
  pen.clearRect(0, 0, sea.width, sea.height);
  drawHistogram(pen, colours);
  for (const basin of sea.basins.values()) {
    if (basin.gone || !basin.rect) continue;
    const goal = basin.target ?? 0;
    basin.level = sea.still ? goal : basin.level + (goal - basin.level) * (1 - Math.exp(-passed * 2.6));
    basin.ripple *= Math.exp(-passed * 1.4);
    drawWater(pen, colours, basin, at);
  }
  for (const gate of sea.gates) drawGate(pen, colours, gate, at);
  drawDots(pen, colours, at);
}

function bars() {
  const bins = new Array(Math.round(Math.log2(mostTokens() / LEAST_TOKENS) * 2)).fill(0);
  for (const { tokens } of model.lengths) {
    // The little extra keeps a power of two from falling below its own bar.
    const bin = Math.floor(onAxis(tokens) * bins.length + 1e-9);
    bins[Math.min(bin, bins.length - 1)] += 1;
  }
  return bins;
}

function drawHistogram(pen, colours) {
  const { x, y, w, h } = sea.histogram;
  const bins = (sea.bins ??= bars());
  const most = Math.max(1, ...bins);
  const wide = w / bins.length;
  const [low, high] = [LEAST_TOKENS, mostTokens()];
  sea.heights ??= [];
  bins.forEach((count, index) => {
    const goal = count / most;
    const height = (sea.heights[index] ?? 0) + (goal - (sea.heights[index] ?? 0)) * (sea.still ? 1 : 0.12);
    sea.heights[index] = height;
    if (height < 0.002) return;
    const middle = low * Math.pow(high / low, (index + 0.5) / bins.length);
    pen.fillStyle = colours[colourOf(classOf(middle))];
    pen.globalAlpha = 0.85;
    const tall = Math.max(2, height * (h - 8));
    pen.beginPath();
    pen.roundRect(x + index * wide + 1, y + h - tall, Math.max(1, wide - 2), tall, [3, 3, 0, 0]);
    pen.fill();
  });
  pen.globalAlpha = 1;
  pen.fillStyle = colours["--line"];
  pen.fillRect(x, y + h, w, 1);
  pen.setLineDash([5, 4]);
  pen.strokeStyle = colours["--ink"];
  pen.lineWidth = 1.5;
  for (const one of model.classes) {
    if (one.below === Infinity) continue;
    const at = x + onAxis(one.below) * w;
    pen.beginPath();
    pen.moveTo(at, y);
    pen.lineTo(at, y + h + 4);
    pen.stroke();
  }
  pen.setLineDash([]);
}

function drawWater(pen, colours, basin, at) {
  const { x, y, w, h } = basin.rect;
  const surface = y + h * (1 - waterline(basin));
  const swell = sea.still ? 0 : Math.min(2 + basin.ripple * 2.5, (y + h - surface) * 0.3);
  const wave = (px, phase, size) => surface + size * (Math.sin(px / 46 + at * 0.9 + phase) + 0.6 * Math.sin(px / 23 - at * 1.2 + phase));
  pen.save();
  pen.beginPath();
  pen.roundRect(x + 2, y, w - 4, h - 2, [0, 0, 12, 12]);
  pen.clip();
  for (const [phase, size, alpha] of [[2, swell * 0.9, 0.45], [0, swell, 1]]) {
    pen.beginPath();
    pen.moveTo(x, y + h);
    for (let px = x; px <= x + w + 8; px += 8) pen.lineTo(px, wave(px, phase, size) - (alpha < 1 ? 4 : 0));
    pen.lineTo(x + w + 8, y + h);
    const fill = pen.createLinearGradient(0, surface, 0, y + h);
    fill.addColorStop(0, colours["--water-1"]);
    fill.addColorStop(1, colours["--water-2"]);
    pen.fillStyle = fill;
    pen.globalAlpha = alpha;
    pen.fill();
  }
  pen.globalAlpha = 0.8;
  pen.strokeStyle = colours["--foam"];
  pen.lineWidth = 1.6;
  pen.beginPath();
  for (let px = x; px <= x + w + 8; px += 8) pen.lineTo(px, wave(px, 0, swell));
  pen.stroke();
  pen.restore();
  pen.strokeStyle = colours["--ink"];
  pen.globalAlpha = 0.28;
  pen.lineWidth = 1;
  for (const mark of [0.25, 0.5, 0.75, 1]) {
    const my = y + h * (1 - DRY - (FULL - DRY) * mark);
    pen.beginPath();
    pen.moveTo(x + w - (mark === 0.5 || mark === 1 ? 12 : 7), my);
    pen.lineTo(x + w - 2, my);
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

/** Two posts and what closes them; it is lifted while something crosses. */
function drawGate(pen, colours, gate, at) {
  const { x, y, w, h } = gate.rect;
  const goal = gate.opened && at - gate.opened < 2.2 ? 1 : 0;
  gate.open += (goal - gate.open) * (sea.still ? 1 : 0.07);
  pen.save();
  if (sea.stacked) {
    pen.translate(x + w - 26, y + h / 2);
    pen.rotate(Math.PI / 2);
    pen.translate(0, -20);
  } else {
    pen.translate(x + w / 2, y + 8);
  }
  const tall = sea.stacked ? 40 : h - 70;
  pen.fillStyle = colours["--line"];
  pen.fillRect(-15, 0, 4, tall);
  pen.fillRect(11, 0, 4, tall);
  pen.fillRect(-18, -3, 36, 4);
  const lift = gate.open * tall * 0.5;
  pen.fillStyle = gate.open > 0.05 ? colours["--crossing"] : colours["--soft"];
  pen.globalAlpha = gate.open > 0.05 ? 0.95 : 0.55;
  pen.beginPath();
  pen.roundRect(-10, tall * 0.42 - lift, 20, tall * 0.55, 3);
  pen.fill();
  pen.fillStyle = colours["--card"];
  for (const rib of [0.25, 0.5, 0.75]) pen.fillRect(-10, tall * (0.42 + 0.55 * rib) - lift, 20, 1.5);
  pen.restore();
}

function drawDots(pen, colours, at) {
  for (const [id, flight] of model.flights) {
    const place = whereIs(flight, at);
    const fading = flight.over !== null && (sea.still || at - flight.begun > (flight.crosses ? 1.9 : 1.15));
    const fade = fading ? Math.max(0, 1 - (at - Math.max(flight.over, flight.begun + 1.15)) / 0.7) : 1;
    if (!place || fade <= 0) {
      model.flights.delete(id);
      continue;
    }
    if (!flight.landed && at - flight.begun > 1) {
      flight.landed = true;
      const basin = sea.basins.get(flight.group);
      if (basin) basin.ripple = Math.min(2.5, basin.ripple + flight.r / 8);
    }
    const colour = flight.crosses ? colours["--crossing"] : colours[flight.colour];
    if (flight.crosses && !sea.still) {
      flight.trail.push(place);
      if (flight.trail.length > 34) flight.trail.shift();
      if (at - flight.begun > 2.6) flight.trail.length = 0;
      pen.strokeStyle = colour;
      pen.lineWidth = 1.6;
      pen.setLineDash([2, 4]);
      pen.globalAlpha = 0.75;
      pen.beginPath();
      for (const point of flight.trail) pen.lineTo(point.x, point.y);
      pen.stroke();
      pen.setLineDash([]);
    }
    pen.globalAlpha = fade;
    pen.beginPath();
    pen.arc(place.x, place.y - (1 - fade) * 14, flight.r, 0, 2 * Math.PI);
    pen.fillStyle = colours[flight.colour];
    pen.fill();
    pen.lineWidth = flight.crosses ? 2.5 : 1;
    pen.strokeStyle = flight.crosses ? colours["--crossing"] : "rgb(5 20 30 / .55)";
    if (flight.crosses) {
      pen.beginPath();
      pen.arc(place.x, place.y - (1 - fade) * 14, flight.r + 2, 0, 2 * Math.PI);
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }
}

/** Waves alone need no sixty pictures a second. */
let frames = 0;
function animate() {
  frames += 1;
  if (!sea.still && (model.flights.size > 0 || frames % 3 === 0)) draw();
  requestAnimationFrame(animate);
}

// ------------------------------------------------------------------------------------------------ servers

/** Signs that differ in shape, not only in colour. */
const SIGNS = {
  healthy: "M6 1.6a4.4 4.4 0 1 0 .01 0z",
  probation: "M6 1.2 11 10.4H1z",
  draining: "M1.6 2.2h8.8M1.6 6h8.8M4.2 9.8h3.6",
  out: "M2 2l8 8M10 2l-8 8",
};

const cards = new Map();

function shape(data) {
  return JSON.stringify([model.crosses, data.groups.map((group) => [group.name, group.servers.map((server) => server.name)])]);
}

function showServers(data) {
  const now_ = shape(data);
  if (sea.shape !== now_) {
    sea.shape = now_;
    build(data);
  }
  levels(data);
  const most = Math.max(1, ...data.groups.flatMap((group) => group.servers.map((server) => server.load_tokens)));
  const work = new Map((data.work?.servers ?? []).map((server) => [server.name, server]));
  const lanes = new Set(data.work?.lanes ?? []);
  for (const group of data.groups) {
    const node = cards.get(`group ${group.name}`);
    setText(node.flight, whole.format(group.in_flight));
    setText(node.load, `in flight · load ${short(group.load_tokens)} tokens${group.waiting ? ` · ${group.waiting} waiting` : ""}`);
    setText(node.gauge, short(sea.scale));
    for (const server of group.servers) showServer(server, most, work.get(server.name), lanes.has(server.name));
  }
  const held = waitingIn(data);
  $("held").hidden = held === 0;
  if (held) setText($("held"), `${plural(held, "request waits", "requests wait")} here for a turn`);
  showGates();
  const dots = [...model.flights.values()].length;
  if (dots < MOST_DOTS * 0.7) $("sampled").hidden = true;
}

function build(data) {
  cards.clear();
  sea.servers.clear();
  for (const basin of sea.basins.values()) basin.gone = true;
  const nodes = [];
  data.groups.forEach((group, index) => {
    if (index > 0 && !model.crosses) nodes.push(el("div", { class: "dam" }));
    if (index > 0 && model.crosses) {
      const before = data.groups[index - 1].name;
      const text = el("span");
      nodes.push(el("div", { class: "gate", "data-before": before, "data-after": group.name }, text));
      cards.set(`gate ${before}/${group.name}`, text);
    }
    const flight = el("b", {}, "0");
    const load = el("span");
    const gauge = el("span", { class: "gauge", title: "Full scale, in tokens of load, for all basins" });
    const range = data.policy.buckets.length > 1 ? rangeOf(group, index === data.groups.length - 1) : plural(group.servers.length, "server", "servers");
    const water = el("div", { class: "water" }, el("h3", {}, group.name, el("small", {}, range)), el("p", { class: "reading" }, flight, " ", load), gauge);
    gauge.style.top = `${100 * (1 - FULL)}%`;
    const list = el("div", { class: "servers", role: "list" });
    for (const server of group.servers) list.append(card(server.name));
    nodes.push(el("article", { class: "basin", "data-group": group.name, "aria-label": `Group ${group.name}` }, water, list));
    cards.set(`group ${group.name}`, { flight, load, gauge });
    const basin = sea.basins.get(group.name) ?? { level: 0, ripple: 0 };
    basin.gone = false;
    sea.basins.set(group.name, basin);
  });
  $("basins").replaceChildren(...nodes);
  arrange();
}

function rangeOf(group, last) {
  if (last) return `from ${short(group.from_tokens)} tokens`;
  return group.from_tokens ? `${short(group.from_tokens)} to ${short(group.to_tokens)} tokens` : `below ${short(group.to_tokens)} tokens`;
}

/** Basins side by side where there is room. */
function arrange() {
  const basins = $("basins");
  const count = basins.querySelectorAll(".basin").length;
  sea.stacked = count > 1 && basins.clientWidth / count < 250;
  basins.classList.toggle("stacked", sea.stacked);
  measure();
}

function card(name) {
  const sign = el("path");
  const flight = el("b");
  const load = el("span");
  const bar = el("i");
  const state = el("span");
  const tag = el("span", { class: "tag", hidden: true }, "lane");
  const engine = el("p", { class: "engine", hidden: true });
  const button = el("button", { type: "button" }, "Drain");
  const node = el("div", { class: "server", role: "listitem", "data-server": name },
    el("header", {}, el("svg", { class: "health", viewBox: "0 0 12 12", "aria-hidden": "true" }, sign), el("span", { class: "name", title: name }, name), tag),
    el("div", { class: "track", "aria-hidden": "true" }, bar),
    el("div", { class: "numbers" }, el("span", {}, flight, " in flight"), load),
    engine,
    el("div", { class: "state" }, state, button));
  button.addEventListener("click", () => press(name, button));
  cards.set(`server ${name}`, { node, sign, flight, load, bar, state, tag, engine, button });
  return node;
}

function showServer(server, most, work, isLane) {
  const view = cards.get(`server ${server.name}`);
  const kind = server.draining ? (server.health === "out" ? "out" : "draining") : server.health;
  if (view.node.dataset.health !== kind) {
    view.node.dataset.health = kind;
    view.sign.setAttribute("d", SIGNS[kind] ?? SIGNS.out);
  }
  setText(view.flight, whole.format(server.in_flight));
  setText(view.load, `${short(server.load_tokens)} tok`);
  view.bar.style.transform = `scaleX(${server.load_tokens / most})`;
  view.tag.hidden = !isLane;
  let state = server.draining ? (server.drained ? "drained" : "draining") : words(server.health);
  if (server.health !== "healthy") state += `: ${words(server.health_reason)}, ${seconds(server.health_for_seconds)}`;
  if (server.ejections) state += ` · ejected ${server.ejections}×`;
  setText(view.state, state);
  const parts = [];
  if (work && (work.prefilling || work.streams)) parts.push(`prefill ${seconds(work.prefill_seconds)} · ${plural(work.streams, "stream", "streams")}`);
  if (server.engine?.running !== null && server.engine?.running !== undefined) {
    parts.push(`engine ${server.engine.running} running, ${server.engine.waiting} waiting` + (server.engine.kv_usage === null ? "" : `, KV ${Math.round(server.engine.kv_usage * 100)} %`));
  }
  view.engine.hidden = parts.length === 0 && !model.status.work;
  setText(view.engine, parts.join(" · ") || (model.status.work ? "idle" : ""));
  view.button.hidden = model.changes === "closed";
  const wants = server.draining ? "undrain" : "drain";
  if (view.button.dataset.wants !== wants) {
    view.button.dataset.wants = wants;
    view.button.setAttribute("aria-label", `${server.draining ? "Undrain" : "Drain"} ${server.name}`);
    calm(view.button);
  }
}

function showGates() {
  const since = now() - 60;
  for (const [key, node] of cards) {
    if (!key.startsWith("gate ")) continue;
    const { before, after } = node.parentElement.dataset;
    let [there, back] = [0, 0];
    for (const { at, from, to } of model.crossings) {
      if (at < since) continue;
      if (from === before && to === after) there += 1;
      if (from === after && to === before) back += 1;
    }
    const [right, left] = sea.stacked ? ["↓", "↑"] : ["→", "←"];
    const text = `${right} ${there}  ${left} ${back}`;
    if (node.dataset.text === text) continue;
    node.dataset.text = text;
    node.replaceChildren(el("b", {}, text), sea.stacked ? " crossings a minute" : el("br"), sea.stacked ? "" : "a minute");
  }
}

/** A button is pressed twice: a server that takes nothing is nothing to come across by a slip of the hand. */
async function press(name, button) {
  const wants = button.dataset.wants;
  if (wants === "drain" && !button.classList.contains("sure")) {
    button.classList.add("sure");
    setText(button, "Sure?");
    button.timer = setTimeout(() => calm(button), 4000);
    return;
  }
  calm(button);
  await change(wants, name);
}

function calm(button) {
  clearTimeout(button.timer);
  button.classList.remove("sure");
  setText(button, button.dataset.wants === "undrain" ? "Undrain" : "Drain");
}

async function change(wants, name) {
  if (model.changes === "token" && !sessionStorage.getItem(TOKEN) && !(await askForToken(`To ${wants} a server the admin token is needed.`))) return;
  try {
    const response = await fetch(`/${wants}?server=${encodeURIComponent(name)}`, { method: "POST", headers: authorization(), credentials: "omit" });
    const answer = await response.json();
    if (response.status === 401) {
      sessionStorage.removeItem(TOKEN);
      say("The token was not accepted. Nothing has changed.");
    } else if (!response.ok) {
      say(`${name}: ${answer.error?.message ?? response.status}`);
    } else {
      say(wants === "drain" ? `${name} gets nothing new; ${plural(answer.in_flight, "request runs", "requests run")} there yet` : `${name} takes requests again`);
    }
  } catch (error) {
    say(`Nobody has answered: ${error.message}`);
  }
}

let saying;
function say(text) {
  clearTimeout(saying);
  $("said").textContent = text;
  saying = setTimeout(() => { $("said").textContent = ""; }, 6000);
}

// ------------------------------------------------------------------------------------------------ figures

const POLICIES = { lanes: "lanes", least_work: "least work", reference_bucket: "buckets", reference_plain: "plain" };

function showFacts(data) {
  setText($("facts"), `${data.version} · policy ${POLICIES[data.policy.name] ?? words(data.policy.name)} · up ${seconds(data.uptime_seconds)}`);
  const flights = data.groups.reduce((sum, group) => sum + group.in_flight, 0);
  document.title = flights ? `${flights} in flight · Tidegate` : "Tidegate";
  const notice = $("notice");
  const refused = data.config_refused;
  notice.hidden = !refused;
  if (refused) setText(notice, `The configuration that was read at ${refused.at} was refused and is not in force: ${refused.problems.join(" ")}`);
  const { requests, redirects, retries } = data.totals;
  setText($("totals"), `${whole.format(requests.complete)} complete, ${whole.format(redirects)} crossed, ${whole.format(retries)} retried, ` +
    `${whole.format(requests.client_gone)} left, ${whole.format(requests.upstream_broken)} broken, ${whole.format(requests.rejected)} rejected since the start`);
  const waiting = waitingIn(data);
  setText($("queue-now"), whole.format(waiting));
  const bounds = data.config.queue;
  setText($("queue-text"), waiting && data.work?.held
    ? `the oldest for ${seconds(data.work.held_for_seconds)}`
    : `at most ${short(bounds.max_requests)}${bounds.max_wait_seconds === null ? "" : `, ${seconds(bounds.max_wait_seconds)} each`}`);
  const shadow = data.shadow;
  setText($("foot"), `Configuration ${data.config_generation}${data.config_source ? ` from ${data.config_source}` : ""}` +
    (model.missed ? ` · ${plural(model.missed, "event was", "events were")} missed by this page` : "") +
    (shadow ? ` · beside it ${words(shadow.policy)} would have sent ${whole.format(shadow.same_server)} requests to the same server, ${whole.format(shadow.same_group)} to another of the group, ${whole.format(shadow.other_group)} to another group` : "") +
    (model.changes === "closed" ? " · to drain servers from here, set admin.token or open this page as localhost" : ""));
}

function showClasses() {
  const legend = model.classes.map((one, index) => el("li", {}, el("i", { "--mark": `var(${colourOf(index)})` }), one.name));
  if (model.crosses) legend.push(el("li", {}, el("i", { class: "ring", "--mark": "var(--crossing)" }), "crossing to another group"));
  $("legend").replaceChildren(...legend);
  $("ttft").replaceChildren(...model.classes.map((one, index) => {
    const spark = el("svg", { class: "spark", viewBox: "0 0 300 60", preserveAspectRatio: "none", "aria-hidden": "true" });
    const [p50, p99] = [el("b", {}, "–"), el("b", {}, "–")];
    const count = el("p", { class: "sub" });
    one.view = { spark, p50, p99, count };
    return el("article", { class: "card", "--mark": `var(${colourOf(index)})` },
      el("h2", {}, el("i"), `Time to first token, ${one.name}`),
      el("p", { class: "big pair" }, el("span", {}, el("small", {}, "p50"), p50), el("span", {}, el("small", {}, "p99"), p99)),
      spark, count);
  }));
  model.views = model.classes.map((one) => one.view);
  if (sea.histogram) showAxis();
}

/** Twice a second would be more than anybody reads. */
function showFigures() {
  const at = now();
  for (const list of [model.records, model.lengths, model.crossings]) prune(list, at);
  sea.bins = bars();
  const oldest = Math.max(at - model.opened, ...[...model.lengths.slice(0, 1), ...model.records.slice(0, 1)].map((one) => at - one.at));
  const span = Math.min(WINDOW, Math.max(SHORTEST, Math.ceil(oldest / 60) * 60));
  const period = span === SHORTEST ? "the last minute" : `${span / 60} minutes`;
  const slotOf = (then) => SLOTS - 1 - Math.floor((at - then) / (span / SLOTS));
  const slots = model.classes.map(() => Array.from({ length: SLOTS }, () => []));
  const all = model.classes.map(() => []);
  for (const { at: then, tokens, ttft } of model.records) {
    if (ttft === undefined || ttft === null) continue;
    const one = classOf(tokens);
    const slot = slotOf(then);
    all[one].push(ttft);
    if (slot >= 0) slots[one][slot].push(ttft);
  }
  const sort = (list) => list.sort((a, b) => a - b);
  all.forEach(sort);
  // One logarithmic scale for all classes: they are there to be compared.
  const most = Math.max(0.2, ...all.map((list) => list[list.length - 1] ?? 0));
  const least = Math.min(0.05, ...all.map((list) => list[0] ?? 1));
  const low = Math.max(0.0005, least);
  const height = (value) => 57 - 54 * Math.max(0, Math.log(value / low) / Math.log(most / low));
  model.views?.forEach((view, index) => {
    setText(view.p50, seconds(quantile(all[index], 0.5)));
    setText(view.p99, seconds(quantile(all[index], 0.99)));
    setText(view.count, all[index].length ? `${plural(all[index].length, "answer", "answers")} in ${period}. Line p50, dashes p99, from ${seconds(low)} to ${seconds(most)}` : `no answer in ${period}`);
    const points = (q) => slots[index].map((list) => quantile(sort(list), q));
    curve(view.spark, [[points(0.5), "line"], [points(0.99), "line high"]], height);
  });
  // Nothing is said of the time before the first that is known of.
  const perSlot = Array.from({ length: SLOTS }, (_, slot) => (slot >= slotOf(at - oldest) ? 0 : undefined));
  for (const { at: then } of model.lengths) {
    const slot = slotOf(then);
    if (slot >= 0) perSlot[slot] = (perSlot[slot] ?? 0) + 1;
  }
  const lately = model.lengths.filter((one) => one.at > at - LATELY).length / Math.min(LATELY, Math.max(1, oldest));
  setText($("rate-now"), lately >= 9.95 ? whole.format(Math.round(lately)) : lately.toFixed(1));
  const peak = Math.max(1, ...perSlot.map((one) => one ?? 0));
  curve($("rate-spark"), [[perSlot, "line"]], (value) => 57 - 54 * (value / peak), true);
  const waited = new Array(SLOTS).fill(undefined);
  for (const { at: then, waiting } of model.queue) {
    const slot = slotOf(then);
    if (slot >= 0) waited[slot] = Math.max(waited[slot] ?? 0, waiting);
  }
  const longest = Math.max(1, ...waited.map((one) => one ?? 0));
  curve($("queue-spark"), [[waited, "line"]], (value) => 57 - 54 * (value / longest), true);
  const parts = model.classes.map((one, index) => {
    const count = model.lengths.filter((each) => classOf(each.tokens) === index).length;
    return `${whole.format(count)} ${one.name}`;
  });
  setText($("lengths-text"), `in ${period}: ${parts.join(", ")}`);
  showDecisions();
  if (sea.still) draw();
}

/** Lines over the window, with a gap where nothing is known. */
function curve(svg, lines, height, filled = false) {
  const step = 300 / (SLOTS - 1);
  const made = [el("line", { class: "rule", x1: 0, x2: 300, y1: 58, y2: 58 })];
  for (const [values, kind] of lines) {
    let path = "";
    let dots = "";
    const known = values.map((value, index) => (value === undefined ? null : `${(index * step).toFixed(1)} ${height(value).toFixed(1)}`));
    known.forEach((point, index) => {
      if (point === null) return;
      // A point without neighbours would be no line.
      if (known[index - 1] == null && known[index + 1] == null) dots += `M${point}h.01`;
      else path += `${known[index - 1] == null ? "M" : "L"}${point}`;
    });
    if (dots) made.push(el("path", { class: "dot", d: dots }));
    if (!path) continue;
    if (filled) {
      const at = (index) => (index * step).toFixed(1);
      const [first, last] = [known.findIndex((point) => point !== null), known.findLastIndex((point) => point !== null)];
      made.push(el("path", { class: "area", d: `${path.replaceAll("M", "L").replace("L", "M")}L${at(last)} 58L${at(first)} 58z` }));
    }
    made.push(el("path", { class: kind, d: path }));
  }
  svg.replaceChildren(...made);
}

// ------------------------------------------------------------------------------------------------ decisions

const REASONS = {
  short: "short: where it costs least",
  short_on_lane: "short, on a lane that is idle enough",
  lane: "long: the cheapest free lane",
  lane_overdue: "long, held for too long: the cheapest lane",
  off_lane: "long, and no lane may take it",
  least_cost: "where it costs least",
  standard: "the group of its length",
  redirected: "crossed: the neighbour is so much lighter",
  failover: "no server of its own group could take it",
};

const ROWS = matchMedia("(max-width: 46rem)").matches ? 20 : 60;
const list = $("decision-list");

function wanted(decision) {
  switch ($("filter").value) {
    case "redirected": return decision.home !== decision.group && decision.group !== undefined;
    case "waited": return decision.waited > 0.001;
    case "failed": return decision.record && (decision.record.end !== "complete" || decision.record.status >= 400);
    default: return true;
  }
}

/** New rows come in at the top, but never under the eyes or the fingers of somebody who reads one. */
function showDecisions(force = false) {
  const reads = list.querySelector("details[open]") || list.contains(document.activeElement) || list.scrollTop > 8;
  const rows = model.decisions.filter(wanted).slice(0, ROWS);
  $("no-decisions").hidden = rows.length > 0;
  if (rows.length === 0 && model.decisions.length) setText($("no-decisions"), "None of the latest is of this kind.");
  if (reads && !force) {
    const shown = new Set([...list.children].map((node) => node.decision));
    const fresh = rows.filter((one) => !shown.has(one)).length;
    $("newer").hidden = fresh === 0;
    if (fresh) setText($("newer"), `Show ${fresh === ROWS ? "the newest" : plural(fresh, "newer one", "newer ones")}`);
    for (const node of list.children) if (node.decision.stale) refresh(node.decision);
    return;
  }
  $("newer").hidden = true;
  const nodes = rows.map((decision) => {
    decision.row ??= row(decision);
    if (decision.stale) refresh(decision);
    return decision.row.node;
  });
  if (nodes.length !== list.children.length || nodes.some((node, index) => node !== list.children[index])) list.replaceChildren(...nodes);
}

function row(decision) {
  const size = Math.round(2 * radiusOf(decision.tokens));
  const mark = el("i", { "--mark": `var(${colourOf(classOf(decision.tokens ?? 0))})` });
  mark.style.width = mark.style.height = `${size}px`;
  const why = el("span", { class: "why" });
  if (decision.home !== decision.group && decision.group && decision.home) why.append(el("b", {}, `${decision.home} → ${decision.group}`), " ");
  why.append(REASONS[decision.reason] ?? words(decision.reason ?? ""));
  if (decision.waited > 0.001) why.append(`, waited ${seconds(decision.waited)}`);
  if (decision.attempt > 1) why.append(`, attempt ${decision.attempt}`);
  const outcome = el("span", { class: "outcome" }, "running");
  const inside = el("div", { class: "explained" });
  const details = el("details", {},
    el("summary", {},
      el("time", {}, decision.when.toLocaleTimeString("en-GB")),
      el("span", { class: "length" }, mark, decision.tokens === null ? "no prompt" : `${short(decision.tokens)} tok`),
      el("span", { class: "target" }, decision.server ?? "no server"),
      why, outcome),
    inside);
  details.addEventListener("toggle", () => {
    if (details.open) explain(decision, inside);
    else showDecisions();
  });
  const node = el("li", {}, details);
  node.decision = decision;
  return { node, outcome, inside, details };
}

function refresh(decision) {
  decision.stale = false;
  if (!decision.row) return;
  const { record, row: { outcome, details, inside } } = decision;
  const good = record.end === "complete" && record.status < 400;
  const text = good
    ? `${record.ttft_s === undefined ? "" : `first token ${seconds(record.ttft_s)}, `}${seconds(record.duration_s)} in all`
    : { client_gone: "the client left", upstream_broken: "the server broke off", rejected: `rejected: ${words(record.rejected ?? record.status)}` }[record.end] ?? `status ${record.status}`;
  setText(outcome, text);
  outcome.classList.toggle("bad", !good && record.end !== "client_gone");
  if (details.open) explain(decision, inside);
}

function explain(decision, inside) {
  const { record } = decision;
  const facts = [["Request", decision.id], ["Prompt", decision.tokens === null ? "weighs nothing" : `${whole.format(decision.tokens)} tokens, estimated`],
    ["Group of its length", decision.home], ["Went to", decision.server && `${decision.server} in ${decision.group}`], ["Reason", words(decision.reason ?? "")],
    ["Waited in Tidegate", seconds(decision.waited)]];
  if (record) {
    facts.push(["Model", record.model], ["Endpoint", record.endpoint], ["Key", record.key], ["Prompt, as the server counted", record.prompt_tokens && `${whole.format(record.prompt_tokens)} tokens`],
      ["From its cache", record.cached_tokens && `${whole.format(record.cached_tokens)} tokens`], ["Answer", record.output_tokens && `${whole.format(record.output_tokens)} tokens`],
      ["First token after", record.ttft_s !== undefined && seconds(record.ttft_s)], ["In all", seconds(record.duration_s)], ["Attempts", record.attempts], ["Status", record.status], ["End", words(record.end)]);
  }
  const shown = facts.filter(([, value]) => value !== undefined && value !== null && value !== false && value !== "");
  const unexplained = !decision.server ? "No server got it."
    : !decision.words ? "It was placed before this page watched: its reason is all that is known."
      : decision.tokens === null ? "It counts as no load: whichever server has the least gets it."
        : "It was one of many in that second, of which some are explained: its reason is all that is known.";
  const sentences = decision.words?.length ? decision.words : [unexplained];
  inside.replaceChildren(el("div", { class: "words" }, ...sentences.map((sentence) => el("p", {}, sentence))), el("dl", {}, ...shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))));
}

$("filter").addEventListener("change", () => showDecisions(true));
$("newer").addEventListener("click", () => {
  for (const open of list.querySelectorAll("details[open]")) open.open = false;
  list.scrollTop = 0;
  showDecisions(true);
});

// ------------------------------------------------------------------------------------------------ the admin token

/** True when one was given. Whoever waits already is answered together with whoever asks next. */
let asking = null;
function askForToken(why) {
  setText($("token-why"), why);
  asking ??= new Promise((resolve) => {
    const dialog = $("token-dialog");
    $("token-input").value = "";
    dialog.showModal();
    dialog.addEventListener("close", () => {
      asking = null;
      $("token-button").hidden = false;
      resolve(dialog.returnValue === "given");
    }, { once: true });
    dialog.returnValue = "";
  });
  return asking.then(async (given) => {
    // Not asked again and again: the button in the header asks the next time.
    if (!given && feed.state === "lost") await new Promise((resolve) => { feed.woken = resolve; });
    return given;
  });
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token-input").value.trim();
  if (token) sessionStorage.setItem(TOKEN, token);
  $("token-dialog").close(token ? "given" : "");
});
$("token-cancel").addEventListener("click", () => $("token-dialog").close(""));
$("token-button").addEventListener("click", async () => {
  const woken = feed.woken;
  if (await askForToken("It is sent with every request of this page.")) {
    woken?.();
    feed.abort?.abort();
  }
});

// ------------------------------------------------------------------------------------------------ keys, theme, motion

const calmer = matchMedia("(prefers-reduced-motion: reduce)");
const lighter = matchMedia("(prefers-color-scheme: light)");
let theme = localStorage.getItem("tidegate.theme");

function applyTheme() {
  const name = theme ?? (lighter.matches ? "light" : "dark");
  document.documentElement.dataset.theme = name;
  setText($("theme"), name === "light" ? "Dark" : "Light");
  readColours();
  if (sea.still) draw();
}

function applyMotion(still) {
  sea.still = still;
  $("motion").setAttribute("aria-pressed", String(still));
  setText($("motion"), still ? "Play" : "Pause");
  $("motion").title = `${still ? "Lets the water move again" : "Stops what moves; the numbers go on"} (key: p)`;
}

function switchTheme() {
  theme = document.documentElement.dataset.theme === "light" ? "dark" : "light";
  localStorage.setItem("tidegate.theme", theme);
  applyTheme();
}

$("theme").addEventListener("click", switchTheme);
$("motion").addEventListener("click", () => applyMotion(!sea.still));
lighter.addEventListener("change", applyTheme);
calmer.addEventListener("change", () => applyMotion(calmer.matches));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "t") switchTheme();
  if (event.key === "p") applyMotion(!sea.still);
});
new ResizeObserver(arrange).observe($("estuary"));

showClasses();
applyTheme();
applyMotion(calmer.matches);
setInterval(showFigures, 1000);
animate();
follow();
