// Run by test_adapters.py: a client for Node made from protos/ at run time, without any code of DarkSight.
//
//     node node_check.js PROTOS TARGET MODEL CLASSES < ROWS
//
// ROWS are little-endian float32 values. Prints the response as JSON, and the status of a call that must fail.

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const fs = require("fs");

const [protos, target, model, classes] = process.argv.slice(2);
const options = { keepCase: true, longs: Number, enums: String, defaults: true, includeDirs: [protos] };
const { v1 } = grpc.loadPackageDefinition(loader.loadSync("darksight/v1/monitor.proto", options)).darksight;
const client = new v1.MonitorService(target, grpc.credentials.createInsecure());
const data = fs.readFileSync(0);

function call(method, request) {
  return new Promise((resolve) => {
    const deadline = Date.now() + 60_000;
    client[method](request, { deadline }, (error, response) => resolve({ error, response }));
  });
}

async function main() {
  const shape = [data.length / (4 * classes), Number(classes)];
  const ids = Array.from({ length: shape[0] }, (_, row) => `node-${row}`);
  const { error, response } = await call("Score", { model, tensor: { shape, data }, prediction_ids: ids });
  if (error) throw error;
  const outcomes = ids.slice(0, 3).map((prediction_id) => ({ prediction_id, label: 1 }));
  const reported = await call("ReportOutcomes", { model, outcomes });
  const refused = await call("Score", { model, tensor: { shape: [1, 2], data: Buffer.alloc(8) } });
  const { batch_id, ...columns } = response;
  console.log(
    JSON.stringify({
      columns,
      batch_bytes: batch_id.length,
      recorded: reported.response.recorded,
      refused: grpc.status[refused.error.code],
    }),
  );
  client.close();
}

main();
