/** Grafana's panel "Stat": its own BigValue, repeated by its own VizRepeater. */

import { getDisplayValueAlignmentFactors, getFieldDisplayValues, PanelPlugin, type PanelProps } from '@grafana/data';
import { config } from '@grafana/runtime';
import type { Options } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import { BigValue, BigValueGraphMode, VizRepeater } from '@grafana/ui';

import { Shown } from './Shown';

function Stat(props: PanelProps<Options>) {
  const { data, fieldConfig, height, options, renderCounter, replaceVariables, timeZone, width } = props;
  const values = () =>
    getFieldDisplayValues({
      fieldConfig,
      reduceOptions: options.reduceOptions,
      replaceVariables,
      theme: config.theme2,
      data: data.series,
      sparkline: options.graphMode !== 'none',
      timeZone,
    });
  return (
    <Shown panel={props}>
      <VizRepeater
        getValues={values}
        getAlignmentFactors={getDisplayValueAlignmentFactors}
        renderValue={({ value, alignmentFactors, count, width, height }) => (
          <BigValue
            theme={config.theme2}
            value={value.display}
            count={count}
            sparkline={value.sparkline}
            alignmentFactors={alignmentFactors}
            colorMode={options.colorMode as never}
            graphMode={options.graphMode as BigValueGraphMode}
            justifyMode={options.justifyMode as never}
            textMode={options.textMode as never}
            text={options.text}
            disableWideLayout={!options.wideLayout}
            width={width}
            height={height}
          />
        )}
        source={data}
        renderCounter={renderCounter}
        itemSpacing={3}
        autoGrid
        orientation={options.orientation as never}
        width={width}
        height={height}
      />
    </Shown>
  );
}

export const stat = new PanelPlugin(Stat as never).useFieldConfig();
