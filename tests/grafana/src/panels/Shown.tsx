import { getFieldDisplayName, type PanelProps } from '@grafana/data';
import type { ReactNode } from 'react';

/** A panel's frame for tests: which one it is, what its data are called, and how many marks it has. */
export function Shown({ panel, children }: { panel: PanelProps; children: ReactNode }) {
  const { series } = panel.data;
  const names = series.flatMap((frame) =>
    frame.fields.filter((field) => field.type === 'number').map((field) => getFieldDisplayName(field, frame, series))
  );
  const marks = (panel.data.annotations ?? []).reduce((sum, frame) => sum + frame.length, 0);
  return (
    <div data-panel={panel.id} data-series={JSON.stringify(names)} data-marks={marks} style={{ height: '100%' }}>
      {children}
    </div>
  );
}

/** What Grafana writes where there is nothing to draw. */
export function Nothing({ panel }: { panel: PanelProps }) {
  const words = panel.fieldConfig.defaults.noValue ?? 'No data';
  return (
    <Shown panel={panel}>
      <div
        data-nothing="true"
        style={{ display: 'grid', placeItems: 'center', height: '100%', textAlign: 'center', opacity: 0.65 }}
      >
        {words}
      </div>
    </Shown>
  );
}
