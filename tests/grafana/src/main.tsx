import './boot';
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';

import { config } from '@grafana/runtime';
import { sceneUtils, type EmbeddedScene } from '@grafana/scenes';
import type { Dashboard } from '@grafana/schema';
import { GlobalStyles, PortalContainer, ThemeContext } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';

import { registerStandardFields } from './fields';
import { bargauge } from './panels/bargauge';
import { stat } from './panels/stat';
import { timeseries } from './panels/timeseries';
import { Prometheus, type Sent } from './prometheus';
import { provide } from './runtime';
import { toScene } from './scene';

declare global {
  interface Window {
    /** For tests: the queries sent so far, how many wait for an answer, and what the variables offer. */
    page: { sent: Sent[]; waiting: () => number; offered: () => Record<string, string[]> };
  }
}

/** Draw the dashboard that the address names, as `?dashboard=URL&prometheus=URL&scrape=1s&from=now-5m&to=now&var-run=x`. */
async function draw(): Promise<void> {
  const address = new URLSearchParams(window.location.search);
  const need = (name: string) => {
    const value = address.get(name);
    if (!value) {
      throw new Error(`the address has no ?${name}=`);
    }
    return value;
  };
  const dashboard = (await (await fetch(need('dashboard'))).json()) as Dashboard;
  const source = new Prometheus(need('prometheus'), address.get('scrape') ?? '15s');
  registerStandardFields();
  provide(source);
  for (const [pluginId, plugin] of Object.entries({ timeseries, stat, bargauge })) {
    sceneUtils.registerRuntimePanelPlugin({ pluginId, plugin });
  }
  const variables: Record<string, string[]> = {};
  for (const [key, value] of address) {
    if (key.startsWith('var-')) {
      (variables[key.slice(4)] ??= []).push(value);
    }
  }
  const from = moment(address.get('from') ?? dashboard.time?.from ?? 'now-1h');
  const to = moment(address.get('to') ?? dashboard.time?.to ?? 'now');
  const scene = toScene(dashboard, { from, to, variables, marks: address.get('marks') !== 'off' });
  window.page = { sent: source.sent, waiting: () => source.waiting, offered: () => offered(scene) };
  document.title = dashboard.title ?? '';
  createRoot(document.getElementById('root')!).render(
    <ThemeContext.Provider value={config.theme2}>
      <GlobalStyles />
      <MemoryRouter>
        <div style={{ padding: 16, background: config.theme2.colors.background.canvas, minHeight: '100%' }}>
          <h1 style={{ fontSize: 22, margin: '0 0 8px' }}>{dashboard.title}</h1>
          <scene.Component model={scene} />
        </div>
        <PortalContainer />
      </MemoryRouter>
    </ThemeContext.Provider>
  );
}

function offered(scene: EmbeddedScene): Record<string, string[]> {
  const variables = scene.state.$variables?.state.variables ?? [];
  return Object.fromEntries(
    variables.map(({ state }) => {
      const options = 'options' in state ? (state.options as Array<{ value: unknown }>) : [];
      return [state.name, options.map(({ value }) => String(value))];
    })
  );
}

/** Take a time as Grafana's addresses have it: milliseconds since 1970, or words such as `now-5m`. */
function moment(text: string): string {
  return /^\d+$/.test(text) ? new Date(Number(text)).toISOString() : text;
}

void draw();
