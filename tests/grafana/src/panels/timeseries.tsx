/** Grafana's panel "Time series": its own chart, legend and tooltip; the marks of annotations are drawn by ours. */

import { FieldType, PanelPlugin, type DataFrame, type PanelProps } from '@grafana/data';
import type { Options } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import { TimeSeries } from '@grafana/ui';
import { useMemo } from 'react';

import { useCustomFields } from '../fields';

import { Marks } from './Marks';
import { Nothing, Shown } from './Shown';

function Chart(props: PanelProps<Options>) {
  const { data, height, options, timeRange, timeZone, width } = props;
  const frames = useMemo(() => data.series.filter(drawable).map(finite), [data.series]);
  if (!frames.length) {
    return <Nothing panel={props} />;
  }
  return (
    <Shown panel={props}>
      <TimeSeries
        frames={frames}
        structureRev={data.structureRev}
        timeRange={timeRange}
        timeZone={timeZone}
        width={width}
        height={height}
        legend={options.legend}
        options={options}
      >
        {(config) => <Marks config={config} annotations={data.annotations ?? []} />}
      </TimeSeries>
    </Shown>
  );
}

function drawable(frame: DataFrame): boolean {
  return frame.length > 0 && frame.fields.some((field) => field.type === FieldType.number);
}

/** A chart has no place for infinity; Grafana leaves it out, too. */
function finite(frame: DataFrame): DataFrame {
  const fields = frame.fields.map((field) =>
    field.type === FieldType.number
      ? { ...field, values: field.values.map((value: number) => (Number.isFinite(value) ? value : null)) }
      : field
  );
  return { ...frame, fields };
}

export const timeseries = new PanelPlugin(Chart as never).setDataSupport({ annotations: true, alertStates: true });

// What Grafana takes for options that a dashboard leaves out.
useCustomFields({
  drawStyle: 'line',
  lineInterpolation: 'linear',
  lineWidth: 1,
  lineStyle: { fill: 'solid' },
  fillOpacity: 0,
  gradientMode: 'none',
  barAlignment: 0,
  barWidthFactor: 0.6,
  stacking: { mode: 'none', group: 'A' },
  showPoints: 'auto',
  pointSize: 5,
  spanNulls: false,
  insertNulls: false,
  hideFrom: { legend: false, tooltip: false, viz: false },
  thresholdsStyle: { mode: 'off' },
  scaleDistribution: { type: 'linear' },
  axisPlacement: 'auto',
  axisLabel: '',
  axisColorMode: 'text',
  axisGridShow: true,
  axisBorderShow: false,
  axisCenteredZero: false,
})(timeseries);
