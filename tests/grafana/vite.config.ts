import { cpSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

import react from '@vitejs/plugin-react';
import { defineConfig, type Plugin } from 'vite';

const resolve = createRequire(import.meta.url).resolve;
const folderOf = (name: string) => dirname(resolve(`${name}/package.json`));

/** Grafana's components fetch their icons at run time, from where Grafana has them. */
function grafanaIcons(): Plugin {
  return {
    name: 'grafana-icons',
    closeBundle() {
      const to = 'dist/public/build/img/icons';
      cpSync(join(folderOf('@grafana/ui'), 'dist/public/img/icons'), to, { recursive: true });
      cpSync(join(folderOf('@iconscout/unicons'), 'svg/line'), `${to}/unicons`, { recursive: true });
    },
  };
}

export default defineConfig({
  base: './',
  plugins: [react(), grafanaIcons()],
  // Grafana's packages are written for its own bundler, which provides these two.
  define: { 'process.env': '{}', global: 'globalThis' },
  build: {
    target: 'es2022',
    minify: false, // twice as fast to build, and nobody downloads it
    reportCompressedSize: false,
    chunkSizeWarningLimit: 100_000,
    rollupOptions: {
      // plugin-compat looks for functions of newer runtimes and copes without them.
      shimMissingExports: true,
      onwarn: () => undefined,
    },
  },
});
