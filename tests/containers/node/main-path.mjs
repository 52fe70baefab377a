// Ask, answer, report, by a client that shares no code with the services. Prints what it saw, as one JSON object.
import { connect, headers, nuid } from "@nats-io/transport-node";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";

const { NATS_URL, NATS_USER, NATS_PASSWORD } = process.env;
const WITHIN = 20_000;
const nc = await connect({
  servers: NATS_URL,
  user: NATS_USER,
  pass: NATS_PASSWORD,
  inboxPrefix: `_INBOX.${NATS_USER}`,
});
const js = jetstream(nc);
const jsm = await jetstreamManager(nc);

async function command(caller, name, body) {
  const inbox = `_INBOX.${NATS_USER}.${nuid.next()}`;
  const replies = nc.subscribe(inbox, { max: 1, timeout: WITHIN });
  const h = headers();
  h.set("reply_to", inbox);
  await js.publish(`cmd.${caller}.${name}`, JSON.stringify(body), { headers: h });
  for await (const message of replies) return unwrap(name, message.json());
}

async function query(caller, name, body) {
  const reply = await nc.request(`query.${caller}.${name}`, JSON.stringify(body), { timeout: WITHIN });
  return unwrap(name, reply.json());
}

function unwrap(name, reply) {
  if (!reply.ok) throw new Error(`${name}: ${reply.error.code}: ${reply.error.message}`);
  return reply.result;
}

// The inbox of a session, as a consumer that starts afresh reads it, until an item of this kind is there.
async function item(session, kind) {
  const name = nuid.next();
  await jsm.consumers.add("INBOX", {
    name,
    filter_subject: `inbox.${session}.>`,
    ack_policy: AckPolicy.None,
    inactive_threshold: 30_000_000_000,
    mem_storage: true,
    num_replicas: 1,
  });
  const consumer = await js.consumers.get("INBOX", name);
  const messages = await consumer.consume({ max_messages: 10 });
  const timer = setTimeout(() => messages.stop(new Error(`no ${kind} in ${WITHIN} ms`)), WITHIN);
  try {
    for await (const message of messages) {
      const body = message.data.length ? message.json() : null;
      if (body?.item?.kind === kind) return body;
    }
  } finally {
    clearTimeout(timer);
    messages.stop();
    await jsm.consumers.delete("INBOX", name);
  }
}

const parent = `node-${nuid.next()}`;
await command(parent, "session.open", { agent: "lead" });
const { run } = await command(parent, "run.start", { task: "Build the shop." });
const child = await command(parent, "session.spawn", {
  agent: "worker",
  task: "Build the orders service.",
  host: "self",
  run_id: run.run_id,
});

const seen = [];
const topic = nc.subscribe(`run.${child.run_id}.>`, { callback: (_, m) => seen.push(m.subject.split(".").at(-1)) });
await nc.flush();

const { question } = await command(child.session_id, "question.ask", {
  run_id: child.run_id,
  question: "Which database?",
  why_blocked: "The schema depends on it.",
  options: ["PostgreSQL", "SQLite"],
});
const asked = await item(parent, "question");
await command(parent, "question.answer", {
  request_id: asked.item.item_id,
  answer: "PostgreSQL, as the others do.",
  selected_option: "PostgreSQL",
});
const answered = await query(child.session_id, "question.wait", {
  request_id: question.request_id,
  timeout_ms: 10_000,
});
await command(child.session_id, "run.settle", {
  run_id: child.run_id,
  outcome: "completed",
  answer: "It uses PostgreSQL.",
});
const report = await item(parent, "report");
await command(parent, "inbox.handle", { item_ids: [report.item.item_id] });
const left = await query(parent, "inbox.list", {});

await nc.flush();
topic.unsubscribe();
await nc.drain();
console.log(
  JSON.stringify({
    asked: asked.data.question,
    answer: answered.question.answer,
    status: answered.question.status,
    report: report.item.text,
    left: left.items.length,
    events: seen,
  }),
);
