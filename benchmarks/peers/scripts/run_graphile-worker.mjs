// https://worker.graphile.org/docs/performance: local queue, batched completions, a pool larger than the concurrency.
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import { main, POOLED, started, URL } from "./talk.mjs";

// Its log has a line for each job, which nobody would keep on at such rates.
const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

const preset = {
  worker: {
    connectionString: URL,
    logger,
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    preparedStatements: !POOLED,
    // Without LISTEN it only polls.
    pollInterval: POOLED ? 500 : 2000,
  },
};

const specs = (count) => Array.from({ length: count }, (_, i) => ({ identifier: "noop", payload: { i } }));

await main({
  prepare: () => runMigrations({ preset }),
  work: () =>
    run({ preset, taskList: { noop: () => {}, stamp: (payload) => started(payload.number) } }).then((runner) => {
      runner.promise.catch((error) => console.error(String(error)));
    }),
  client: async () => {
    const utils = await makeWorkerUtils({ preset });
    return {
      one: (i) => utils.addJob("noop", { i }),
      bulk: (count) => utils.addJobs(specs(count)),
      stamp: (number) => utils.addJob("stamp", { number }),
    };
  },
});
