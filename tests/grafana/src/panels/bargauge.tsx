/** Grafana's panel "Bar gauge": its own BarGauge, repeated by its own VizRepeater. */

import { getDisplayValueAlignmentFactors, getFieldDisplayValues, PanelPlugin, type PanelProps } from '@grafana/data';
import { config } from '@grafana/runtime';
import type { Options } from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import { BarGauge, VizRepeater } from '@grafana/ui';

import { Shown } from './Shown';

const SPACING = 10;

function BarGauges(props: PanelProps<Options>) {
  const { data, fieldConfig, height, options, renderCounter, replaceVariables, timeZone, width } = props;
  const values = () =>
    getFieldDisplayValues({
      fieldConfig,
      reduceOptions: options.reduceOptions,
      replaceVariables,
      theme: config.theme2,
      data: data.series,
      timeZone,
    });
  return (
    <Shown panel={props}>
      <VizRepeater
        getValues={values}
        getAlignmentFactors={getDisplayValueAlignmentFactors}
        renderValue={({ value, alignmentFactors, orientation, width, height, count }) => (
          <BarGauge
            theme={config.theme2}
            value={value.display}
            field={value.field}
            display={value.view?.getFieldDisplayProcessor(value.colIndex ?? 0)}
            alignmentFactors={count > 1 ? alignmentFactors : undefined}
            orientation={orientation}
            displayMode={options.displayMode}
            showUnfilled={options.showUnfilled}
            valueDisplayMode={options.valueMode}
            namePlacement={options.namePlacement}
            text={options.text}
            itemSpacing={SPACING}
            width={width}
            height={height}
          />
        )}
        source={data}
        renderCounter={renderCounter}
        itemSpacing={SPACING}
        orientation={options.orientation as never}
        minVizWidth={options.minVizWidth}
        minVizHeight={options.minVizHeight}
        maxVizHeight={options.maxVizHeight}
        width={width}
        height={height}
      />
    </Shown>
  );
}

export const bargauge = new PanelPlugin(BarGauges as never).useFieldConfig();
