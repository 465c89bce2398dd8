// The consumer of the key-value API's document, as it stands there. Around it is what a page in a browser would have:
// an origin, an EventSource, and work to do that fails at first for those who ask for it.
import { createRequire } from "node:module";

const [origin, packages] = process.argv.slice(2);
const library = createRequire(`${packages}/`)("eventsource");
const request = globalThis.fetch;
const tried = new Set();

class EventSource extends library.EventSource {
  constructor(path) {
    super(new URL(path, origin));
    this.addEventListener("ping", (event) => console.log(`ping ${JSON.stringify(event.data)}`));
  }
}

async function fetch(path, options) {
  const answer = await request(new URL(path, origin), options);
  console.log(`${path.split("/").at(-1)} ${answer.status} ${await answer.text()}`);
}

async function processMessage(value) {
  if (value.failsAtFirst && !tried.has(value.task)) {
    tried.add(value.task);
    throw new Error(value.task);
  }
}

// From here on the words are those of the document.
const eventSource = new EventSource("/keyval/api/queue/listen");

eventSource.addEventListener("message", async (event) => {
  const msg = JSON.parse(event.data);
  console.log(`Processing: ${msg.id}, attempt: ${msg.attempts}`);

  try {
    await processMessage(msg.value);

    // Acknowledge success
    await fetch("/keyval/api/queue/ack", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ id: msg.id }),
    });
  } catch (error) {
    // Reject for retry
    await fetch("/keyval/api/queue/nack", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ id: msg.id }),
    });
  }
});
