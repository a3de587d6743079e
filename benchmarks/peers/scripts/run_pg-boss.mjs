// https://pgboss.io/api/workers: large batches, burst while a batch comes full, woken by LISTEN.
import { PgBoss } from "pg-boss";
import { main, POOLED, started, URL } from "./talk.mjs";

const made = async (options) => {
  const boss = new PgBoss({ connectionString: URL, ...options });
  boss.on("error", (error) => console.error(String(error)));
  await boss.start();
  return boss;
};

// Of what is not needed to enqueue, nothing: no maintenance, no cron.
const producer = () => made({ supervise: false, schedule: false });

await main({
  prepare: async () => {
    const boss = await made();
    for (const queue of ["noop", "stamp"]) await boss.createQueue(queue, { notify: true });
    await boss.stop();
  },
  work: async () => {
    const boss = await made({ useListenNotify: !POOLED });
    const options = { batchSize: 5000, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
    await boss.work("noop", options, async () => {});
    await boss.work("stamp", options, async (jobs) => jobs.forEach((job) => started(job.data.number)));
  },
  client: async () => {
    const boss = await producer();
    return {
      one: (i) => boss.send("noop", { i }),
      bulk: (count) => boss.insert("noop", Array.from({ length: count }, (_, i) => ({ data: { i } }))),
      stamp: (number) => boss.send("stamp", { number }),
    };
  },
});
