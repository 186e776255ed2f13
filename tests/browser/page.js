// The live page in a real browser, against a running `tidegate demo`. Started by `run`, with the program.
//
// What it holds the page to: it shows what /status says, under load and at rest; it survives the end of the process
// and shows the next one; it works from the keyboard, on a phone, in the dark and in the light; it asks nobody but its
// own listener; nothing is complained about on the console.
"use strict";

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const http = require("node:http");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");

const TIDEGATE = process.argv[2];
const PATIENCE_MS = 15_000;
const KEEP = process.env.SCREENSHOTS;
const folder = KEEP ? path.resolve(KEEP) : fs.mkdtempSync(path.join(os.tmpdir(), "tidegate-page-"));
fs.mkdirSync(folder, { recursive: true });

/** Programs that were started, to be ended whatever happens. */
const running = new Set();

function step(text) {
  console.log(`- ${text}`);
}

/** Ports that are free, below the range that the system gives to outgoing connections. */
async function freePorts(count) {
  const held = [];
  while (held.length < count) {
    const server = net.createServer();
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    const free = await new Promise((resolve) => {
      server.once("error", () => resolve(false));
      server.listen(port, "127.0.0.1", () => resolve(true));
    });
    if (free) held.push(server);
  }
  const ports = held.map((server) => server.address().port);
  await Promise.all(held.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}

function request(port, method, target, body, headers = {}) {
  return new Promise((resolve, reject) => {
    const sent = http.request({ host: "127.0.0.1", port, method, path: target, headers: { ...headers, ...(body ? { "content-length": Buffer.byteLength(body) } : {}) } }, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("end", () => resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(parts).toString() }));
      response.on("error", reject);
    });
    sent.on("error", reject);
    sent.end(body);
  });
}

const statusOf = async (port) => JSON.parse((await request(port, "GET", "/status")).body);

/** Waits until something holds; the last reason why it did not is the error. */
async function until(what, condition) {
  const end = Date.now() + PATIENCE_MS;
  let last;
  for (;;) {
    try {
      if (await condition()) return;
      last = undefined;
    } catch (error) {
      last = error;
    }
    if (Date.now() > end) throw new Error(`not within ${PATIENCE_MS / 1000} s: ${what}${last ? `: ${last.message}` : ""}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function start(args, adminPort) {
  const log = path.join(folder, `tidegate-${adminPort}.log`);
  const child = spawn(TIDEGATE, args, { stdio: ["ignore", "ignore", fs.openSync(log, "a")], env: { ...process.env, RUST_LOG: "info", OPENAI_API_KEY: "" } });
  running.add(child);
  child.ended = new Promise((resolve) => child.once("exit", () => { running.delete(child); resolve(); }));
  await until("Tidegate serves", async () => {
    assert.equal(child.exitCode, null, `Tidegate has ended: ${fs.readFileSync(log, "utf8")}`);
    return (await request(adminPort, "GET", "/readyz").catch(() => ({}))).status === 200;
  });
  return child;
}

/** A prompt of so many tokens that begins like no other. */
const prompt = (tokens) => `${Math.random()} `.padEnd(tokens * 4, "tide ");

/** Requests of all lengths at some rate, until it is told to stop. Returns how to tell it. */
function load(port, perSecond) {
  let stopped = false;
  const agent = new http.Agent({ keepAlive: true });
  const open = new Set();
  const one = () => {
    if (stopped) return;
    const isLong = Math.random() < 0.05;
    const tokens = Math.round(isLong ? Math.exp(10.45 + Math.random() * 0.5) : Math.exp(3 + Math.random() * 5));
    const body = JSON.stringify({ model: "demo", stream: true, max_tokens: 40, prompt: prompt(tokens) });
    const sent = http.request({ host: "127.0.0.1", port, agent, method: "POST", path: "/v1/completions", headers: { "content-type": "application/json", "content-length": Buffer.byteLength(body) } }, (response) => {
      response.resume();
      response.on("error", () => {});
    });
    open.add(sent);
    sent.on("close", () => open.delete(sent));
    sent.on("error", () => {});
    sent.end(body);
    setTimeout(one, (-Math.log(Math.random()) * 1000) / perSecond);
  };
  one();
  return () => {
    stopped = true;
    open.forEach((sent) => sent.destroy());
  };
}

/** A request that runs until it is told to stop: hundreds of tokens, 30 ms each. */
function hold(port, tokens) {
  const body = JSON.stringify({ model: "demo", stream: true, max_tokens: 4000, ignore_eos: true, prompt: prompt(tokens) });
  const sent = http.request({ host: "127.0.0.1", port, agent: false, method: "POST", path: "/v1/completions", headers: { "content-type": "application/json", "content-length": Buffer.byteLength(body) } }, (response) => {
    response.resume();
    response.on("error", () => {});
  });
  sent.on("error", () => {});
  sent.end(body);
  return () => sent.destroy();
}

/** What the page says of each server: in flight and how it is, as text. */
const shown = (page) => page.evaluate(() => Object.fromEntries([...document.querySelectorAll(".server")].map((node) => [
  node.dataset.server,
  { inFlight: Number(node.querySelector(".numbers b").textContent), load: node.querySelector(".numbers span:last-child").textContent, health: node.dataset.health },
])));

/** What the status says of each server, in the words of the page. */
async function expected(page, port) {
  const status = await statusOf(port);
  const servers = status.groups.flatMap((group) => group.servers);
  const texts = await page.evaluate((loads) => loads.map((load) => `${short(load)} tok`), servers.map((server) => server.load_tokens));
  return Object.fromEntries(servers.map((server, index) => [
    server.name,
    { inFlight: server.in_flight, load: texts[index], health: server.draining ? "draining" : server.health },
  ]));
}

const showsTheStatus = (page, port) => async () => {
  assert.deepEqual(await shown(page), await expected(page, port));
  return true;
};

const connection = (page) => page.textContent("#connection-text");

/** A page that keeps what is complained about. */
async function open(browser, url, options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.complaints = [];
  page.asked = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) page.complaints.push(message.text());
  });
  page.on("pageerror", (error) => page.complaints.push(`${error}\n${error.stack}`));
  page.on("request", (one) => page.asked.push(one.url()));
  await page.goto(url);
  await until("the page is live", async () => (await connection(page)) === "live");
  return page;
}

async function shot(page, name, options) {
  await page.screenshot({ path: path.join(folder, `${name}.png`), ...options });
}

async function demo(browser) {
  const [port, adminPort, ...servers] = await freePorts(6);
  const args = ["demo", "--port", port, "--admin-port", adminPort, "--server-ports", ...servers].map(String);
  const url = `http://127.0.0.1:${adminPort}/`;
  let tidegate = await start(args, adminPort);

  step("the page is one small document with a strict policy; programs get the index");
  const html = await request(adminPort, "GET", "/", undefined, { accept: "text/html" });
  assert.equal(html.headers["content-type"], "text/html; charset=utf-8");
  assert.match(html.headers["content-security-policy"], /^default-src 'none'; script-src 'sha256-/);
  assert.ok(html.body.length < 100_000, `${html.body.length} bytes`);
  assert.match((await request(adminPort, "GET", "/")).headers["content-type"], /^text\/plain/);

  const desktop = { viewport: { width: 1280, height: 1000 } };
  const dark = await open(browser, url, { ...desktop, colorScheme: "dark" });
  const light = await open(browser, url, { ...desktop, colorScheme: "light" });
  const phone = await open(browser, url, { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true, colorScheme: "dark" });
  const pages = [dark, light, phone];
  const themes = await Promise.all(pages.map((page) => page.evaluate(() => document.documentElement.dataset.theme)));
  assert.deepEqual(themes, ["dark", "light", "dark"]);

  step("it shows what /status says while requests run");
  const held = [hold(port, 200), hold(port, 1_500), hold(port, 4_000), hold(port, 36_000)];
  await until("four requests run", async () => (await statusOf(adminPort)).groups.reduce((sum, group) => sum + group.in_flight, 0) === 4);
  for (const page of pages) await until("the page says so", showsTheStatus(page, adminPort));
  held.forEach((stop) => stop());
  await until("the page sees them go", showsTheStatus(dark, adminPort));

  step("it shows requests of all lengths, where they go, how long they take and why");
  const stopLoad = load(port, 15);
  for (const page of pages) {
    await until("decisions are listed", async () => (await page.locator("#decision-list li").count()) >= 10);
    await until("dots move", () => page.evaluate(() => model.flights.size > 0));
    await until("first tokens are timed", async () => /\d+ ms|\d s/.test(await page.locator("#ttft .pair b").first().textContent()));
    await until("the rate is shown", async () => Number(await page.textContent("#rate-now")) > 1);
  }
  await until("some have crossed", () => dark.evaluate(() => model.crossings.length > 0));
  const lengths = await dark.evaluate(() => ({ bars: bars().reduce((a, b) => a + b), known: model.lengths.length }));
  assert.equal(lengths.bars, lengths.known);
  assert.match(await dark.textContent("#axis .threshold"), /33k tokens/);
  // Under load nothing stands still, but what is counted in the end is the same.
  await new Promise((resolve) => setTimeout(resolve, Number(process.env.LOAD_SECONDS ?? 6) * 1000));
  await shot(dark, "desktop-dark");
  await shot(light, "desktop-light");
  await shot(phone, "phone-dark");

  step("a decision is explained, from the keyboard, and stays under the eyes while others come");
  await dark.locator("#decision-list summary").nth(2).focus();
  await dark.keyboard.press("Enter");
  const open_ = dark.locator("#decision-list details[open]");
  await until("it is open", async () => (await open_.count()) === 1);
  const explanation = await open_.locator(".explained").textContent();
  assert.match(explanation, /The prompt counts as [\d,]+ tokens.*It would go to |It was one of many in that second/s);
  const id = await open_.locator("dd").first().textContent();
  await until("newer ones are announced", () => dark.locator("#newer").isVisible());
  assert.equal(await open_.locator("dd").first().textContent(), id);
  await dark.evaluate(() => document.querySelector("#decisions").scrollIntoView());
  await shot(dark, "decision-dark");
  await dark.locator("#newer").click();
  assert.equal(await open_.count(), 0);

  step("on a phone nothing sticks out");
  const wide = await phone.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(wide[0] <= wide[1], `${wide[0]} pixels on a screen of ${wide[1]}`);
  await phone.evaluate(() => document.querySelector(".figures").scrollIntoView());
  await shot(phone, "phone-figures");
  await phone.evaluate(() => document.querySelector("#decisions").scrollIntoView());
  await shot(phone, "phone-decisions");
  stopLoad();

  step("a server is drained and taken back from the keyboard");
  const button = dark.locator(".server button").nth(1);
  const name = await dark.locator(".server").nth(1).getAttribute("data-server");
  const isDraining = async () => (await statusOf(adminPort)).groups.flatMap((group) => group.servers).find((server) => server.name === name).draining;
  await button.focus();
  await dark.keyboard.press("Enter");
  assert.equal(await isDraining(), false, "once is not enough");
  await dark.keyboard.press("Enter");
  await until("it drains", isDraining);
  await until("the page says so", async () => (await shown(dark))[name].health === "draining");
  await shot(dark, "draining-dark");
  await button.focus();
  await dark.keyboard.press("Enter");
  await until("it takes requests again", async () => !(await isDraining()));
  await until("the page says so, too", showsTheStatus(dark, adminPort));

  step("keys switch the theme and stop what moves");
  await light.keyboard.press("t");
  assert.equal(await light.evaluate(() => document.documentElement.dataset.theme), "dark");
  await light.keyboard.press("p");
  assert.equal(await light.getAttribute("#motion", "aria-pressed"), "true");
  const calm = await open(browser, url, { ...desktop, reducedMotion: "reduce" });
  assert.equal(await calm.getAttribute("#motion", "aria-pressed"), "true");
  await calm.context().close();

  step("nothing was complained about, and nobody else was asked");
  for (const page of pages) {
    assert.deepEqual(page.complaints, []);
    const elsewhere = page.asked.filter((one) => !one.startsWith(url) && !one.startsWith("data:"));
    assert.deepEqual(elsewhere, []);
  }

  step("it survives the end of the process and shows the next one");
  const before = await statusOf(adminPort);
  tidegate.kill("SIGKILL");
  await tidegate.ended;
  for (const page of pages) await until("the page sees that nobody is there", async () => (await connection(page)).startsWith("not connected"));
  await shot(dark, "lost-dark");
  tidegate = await start(args, adminPort);
  for (const page of pages) {
    await until("the page is live again", async () => (await connection(page)) === "live");
    await until("and shows the new process", () => page.evaluate((old) => model.status.start_time_seconds !== old, before.start_time_seconds));
  }
  const again = hold(port, 300);
  await until("a request runs", async () => (await statusOf(adminPort)).groups[0].in_flight === 1);
  await until("the page shows it", showsTheStatus(dark, adminPort));
  again();
  // A browser logs by itself that it could not connect. Nothing else is forgiven.
  for (const page of pages) assert.deepEqual(page.complaints.filter((text) => !text.includes("net::ERR_")), []);

  step("SIGTERM is not held up by pages that watch");
  const begun = Date.now();
  tidegate.kill("SIGTERM");
  await tidegate.ended;
  assert.ok(Date.now() - begun < 8_000, `${Date.now() - begun} ms`);
  for (const page of pages) await page.context().close();
}

async function token(browser) {
  step("behind a token the page asks for it, and goes on when it is right");
  const [port, adminPort, server] = await freePorts(3);
  const file = path.join(folder, "token.yaml");
  fs.writeFileSync(file, `listen: 127.0.0.1:${port}
admin: { listen: 127.0.0.1:${adminPort}, token: right-token, protect_reads: true }
groups: [{ name: all, servers: [{ address: 127.0.0.1:${server}, name: gpu-1 }] }]
health: { active: { enabled: false } }
`);
  const tidegate = await start(["--conf", file], adminPort);
  const context = await browser.newContext({ viewport: { width: 900, height: 700 }, colorScheme: "dark" });
  const page = await context.newPage();
  const complaints = [];
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  await page.goto(`http://127.0.0.1:${adminPort}/`);
  for (const [typed, why] of [["wrong-token", /shows nothing without/], ["right-token", /not accepted/]]) {
    await until("the token is asked for", () => page.locator("#token-dialog").isVisible());
    await until("with the reason", async () => why.test(await page.textContent("#token-why")));
    if (typed === "wrong-token") await shot(page, "token-dark");
    await page.keyboard.type(typed);
    await page.keyboard.press("Enter");
  }
  await until("the page is live", async () => (await connection(page)) === "live");
  await page.locator(".server button").click();
  await page.locator(".server button").click();
  await until("the page says that the server drains", async () => (await shown(page))["gpu-1"].health === "draining");
  await page.reload();
  await until("the token was kept for the tab", async () => (await connection(page)) === "live");
  assert.deepEqual(complaints.filter((text) => !text.includes("401")), []);
  await context.close();
  tidegate.kill("SIGTERM");
  await tidegate.ended;
}

(async () => {
  // In containers there is often no sandbox to be had, and little shared memory; the page is our own.
  const args = ["--no-sandbox", "--disable-dev-shm-usage"];
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args });
  let failure;
  try {
    await demo(browser);
    await token(browser);
  } catch (error) {
    failure = error;
    for (const context of browser.contexts()) {
      for (const [number, page] of context.pages().entries()) await shot(page, `failed-${number}`).catch(() => {});
    }
  }
  await browser.close();
  running.forEach((child) => child.kill("SIGKILL"));
  if (failure) {
    console.error(failure);
    console.error(`screenshots and logs: ${folder}`);
    process.exit(1);
  }
  if (KEEP) console.log(`screenshots: ${folder}`);
  else fs.rmSync(folder, { recursive: true });
  console.log("the live page: all passed");
})();
