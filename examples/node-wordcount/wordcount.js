#!/usr/bin/env node
// A Flambeau backend without an SDK: docs/protocol.md in JavaScript. It counts what is in texts.
"use strict";

const fs = require("node:fs");
const net = require("node:net");
const path = require("node:path");

// ---- the model

function count(text) {
  return { lines: text === "" ? 0 : text.replace(/\n$/, "").split("\n").length, words: (text.match(/\S+/g) || []).length, letters: [...text].length };
}

function answer(item) {
  const part = item.parts.find((p) => p.name === "data") || item.parts.find((p) => p.name === "body") || item.parts[0];
  if (!part) return { status: 400, failure: { reason: "handler_failed", message: "the request has no text", detail: "" } };
  return { headers: [["content-type", "application/json"]], body: Buffer.from(JSON.stringify(count(part.data.toString("utf8")))) };
}

// ---- frames: little-endian numbers, texts and blobs with their lengths before them

class Reader {
  constructor(buffer) {
    this.buffer = buffer;
    this.at = 0;
  }
  take(length) {
    if (this.at + length > this.buffer.length) throw new Error("malformed frame: it is cut off");
    return this.buffer.subarray(this.at, (this.at += length));
  }
  u32() {
    return this.take(4).readUInt32LE();
  }
  u64() {
    return this.take(8).readBigUInt64LE();
  }
  str() {
    return this.take(this.u32()).toString("utf8");
  }
  blob() {
    return this.take(Number(this.u64()));
  }
  list(one) {
    return Array.from({ length: this.u32() }, one);
  }
}

const u32 = (n) => {
  const b = Buffer.alloc(4);
  b.writeUInt32LE(n);
  return b;
};
const u64 = (n) => {
  const b = Buffer.alloc(8);
  b.writeBigUInt64LE(BigInt(n));
  return b;
};
const str = (text) => {
  const b = Buffer.from(text, "utf8");
  return Buffer.concat([u32(b.length), b]);
};

const BATCH = 1;
const RESULTS = 2;

function readBatch(frame) {
  const r = new Reader(frame);
  const kind = r.take(1)[0];
  r.take(3); // flags, and a zero
  const items = r.u32();
  const batch = { kind, id: r.u64(), items: [] };
  if (kind !== BATCH) return batch; // a cancellation, or a kind of a later version
  for (let i = 0; i < items; i++) {
    batch.items.push({
      id: r.str(),
      deadline: r.u64(),
      headers: r.list(() => [r.str(), r.str()]),
      parts: r.list(() => ({ name: r.str(), contentType: r.str(), data: r.blob() })),
    });
  }
  return batch;
}

function writeResults(id, results) {
  const out = [Buffer.from([RESULTS, 0, 0, 0]), u32(results.length), u64(id)];
  for (const r of results) {
    out.push(Buffer.from([r.failure ? 1 : 0]), u32(r.status || 0), u32((r.headers || []).length));
    for (const [name, value] of r.headers || []) out.push(str(name), str(value));
    if (r.failure) out.push(str(r.failure.reason), str(r.failure.message), str(r.failure.detail));
    else out.push(u64(r.body.length), r.body);
  }
  return Buffer.concat(out);
}

// ---- the process

if (process.env.FLAMBEAU_PLUGIN !== "7c1d5b0e-flambeau-backend") {
  console.error("this is a backend of the Flambeau model server, which starts it: put its folder into the model store (flambeau-backend-protocol=1;)");
  process.exit(1);
}
process.on("SIGINT", () => {}); // the server's to handle
// The lifeline: when it ends, the server is gone, and so goes the process group.
const lifeline = new net.Socket({ fd: 3, readable: true, writable: false });
lifeline.on("end", () => process.kill(0, "SIGKILL")).on("error", () => process.kill(0, "SIGKILL")).resume();

const grpc = require("@grpc/grpc-js");

const bytes = (b) => b;
const method = (route, stream) => ({
  path: route,
  requestStream: stream,
  responseStream: stream,
  requestSerialize: bytes,
  requestDeserialize: bytes,
  responseSerialize: bytes,
  responseDeserialize: bytes,
});
const empty = Buffer.alloc(0);
const limit = Number(process.env.FLAMBEAU_MAX_MESSAGE_BYTES);
const server = new grpc.Server({ "grpc.max_receive_message_length": limit, "grpc.max_send_message_length": limit });
let loaded = false;

function end() {
  server.forceShutdown();
  process.exit(0);
}

server.addService({ Check: method("/grpc.health.v1.Health/Check", false) }, { Check: (_, reply) => reply(null, Buffer.from([8, 1])) }); // SERVING
server.addService({ Shutdown: method("/plugin.GRPCController/Shutdown", false) }, {
  Shutdown: (_, reply) => {
    reply(null, empty);
    setImmediate(end);
  },
});
server.addService(
  {
    Load: method("/flambeau.backend.v1.Backend/Load", false),
    Unload: method("/flambeau.backend.v1.Backend/Unload", false),
    Execute: method("/flambeau.backend.v1.Backend/Execute", true),
  },
  {
    Load: (_, reply) => {
      // There is nothing to load, so that nothing of the request is needed; an empty message says that all is well.
      if (loaded) return reply({ code: grpc.status.FAILED_PRECONDITION, details: "load was called before" });
      loaded = true;
      reply(null, empty);
    },
    Unload: (_, reply) => reply(null, empty),
    Execute: (stream) => {
      stream.on("data", (frame) => {
        const batch = readBatch(frame);
        if (batch.kind === BATCH) stream.write(writeResults(batch.id, batch.items.map(guarded)));
      });
      stream.on("end", () => {
        stream.end();
        setImmediate(end);
      });
      stream.on("error", () => end());
    },
  },
);

// guarded fails one item, and not its neighbours.
function guarded(item) {
  try {
    return answer(item);
  } catch (err) {
    return { failure: { reason: "handler_failed", message: "Prediction failed", detail: String(err.stack || err) } };
  }
}

const socket = path.join(process.env.PLUGIN_UNIX_SOCKET_DIR || "/tmp", "wordcount-" + process.pid);
server.bindAsync("unix:" + socket, grpc.ServerCredentials.createInsecure(), (err) => {
  if (err) {
    console.error(err);
    process.exit(1);
  }
  fs.writeSync(1, "1|1|unix|" + socket + "|grpc|\n");
  // Whatever prints from now on is a log line: the lowest free descriptor is the one that was closed.
  fs.closeSync(1);
  if (fs.openSync("/proc/self/fd/4", "w") !== 1) console.error("standard output is not the log");
});
