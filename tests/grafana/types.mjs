/** Checks the dashboards against the types of @grafana/schema: `npm run types`. */

import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';

const DASHBOARDS = join(import.meta.dirname, '../../grafana/dashboards');
const FOLDER = join(import.meta.dirname, 'dist-types');

// What the Prometheus data source adds to an annotation. The schema knows `target` as that of Grafana's own
// annotations only, and says itself that it should be a query of the data source.
const OF_PROMETHEUS = ['expr', 'titleFormat', 'useValueForTime', 'target'];

// In JSON the values of an enumeration are plain strings, and minus infinity, where the first threshold begins, is
// absent.
const TYPE = `import type { Dashboard, Threshold } from '@grafana/schema';

type Json<T> = T extends Threshold ? Omit<T, 'value'> & { value?: number }
  : T extends string ? \`\${T}\`
  : T extends number | boolean | null | undefined ? T
  : T extends Array<infer Item> ? Array<Json<Item>>
  : { [Key in keyof T]: Json<T[Key]> };

`;

rmSync(FOLDER, { recursive: true, force: true });
mkdirSync(FOLDER);
for (const file of readdirSync(DASHBOARDS)) {
  const dashboard = JSON.parse(readFileSync(join(DASHBOARDS, file), 'utf8'));
  for (const annotation of dashboard.annotations.list) {
    OF_PROMETHEUS.forEach((field) => delete annotation[field]);
  }
  const text = `${TYPE}export const it: Json<Dashboard> = ${JSON.stringify(dashboard, null, 2)};\n`;
  writeFileSync(join(FOLDER, `${basename(file, '.json')}.ts`), text);
}
const files = readdirSync(FOLDER).map((name) => join(FOLDER, name));
const options = '--noEmit --strict --skipLibCheck --target es2022 --module esnext --moduleResolution bundler --types node';
try {
  execFileSync(join(import.meta.dirname, 'node_modules/.bin/tsc'), [...options.split(' '), ...files], { stdio: 'inherit' });
} catch {
  process.exitCode = 1;
} finally {
  rmSync(FOLDER, { recursive: true, force: true });
}
