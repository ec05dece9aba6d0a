/** The field options that Grafana registers at its start: without them units, thresholds and colours are lost. */

import {
  booleanOverrideProcessor,
  displayNameOverrideProcessor,
  FieldConfigProperty,
  identityOverrideProcessor,
  numberOverrideProcessor,
  standardEditorsRegistry,
  standardFieldConfigEditorRegistry,
  stringOverrideProcessor,
  thresholdsOverrideProcessor,
  unitOverrideProcessor,
  valueMappingsOverrideProcessor,
  type FieldConfigPropertyItem,
  type PanelPlugin,
} from '@grafana/data';

const noEditor = () => null;

/** `process` takes a value from the dashboard's JSON into the field's configuration. */
type Process = FieldConfigPropertyItem['process'];

const STANDARD: Array<[FieldConfigProperty, Process]> = [
  [FieldConfigProperty.Unit, unitOverrideProcessor as Process],
  [FieldConfigProperty.Min, numberOverrideProcessor],
  [FieldConfigProperty.Max, numberOverrideProcessor],
  [FieldConfigProperty.FieldMinMax, booleanOverrideProcessor as Process],
  [FieldConfigProperty.Decimals, numberOverrideProcessor],
  [FieldConfigProperty.DisplayName, displayNameOverrideProcessor],
  [FieldConfigProperty.NoValue, stringOverrideProcessor],
  [FieldConfigProperty.Color, identityOverrideProcessor],
  [FieldConfigProperty.Thresholds, thresholdsOverrideProcessor],
  [FieldConfigProperty.Mappings, valueMappingsOverrideProcessor],
  [FieldConfigProperty.Links, identityOverrideProcessor],
];

/** Register the standard options. */
export function registerStandardFields(): void {
  standardFieldConfigEditorRegistry.setInit(() => STANDARD.map(([id, process]) => item(id, id, process)));
  const kinds = ['text', 'number', 'boolean', 'select', 'radio', 'color', 'unit', 'slider', 'stats-picker'];
  standardEditorsRegistry.setInit(() => kinds.map((id) => ({ id, name: id, editor: noEditor })));
}

/** Register a panel's own options, such as `custom.lineWidth`, with what Grafana takes when they are absent. */
export function useCustomFields(defaults: Record<string, unknown>): (plugin: PanelPlugin) => void {
  return (plugin) =>
    plugin.useFieldConfig({
      standardOptions: { [FieldConfigProperty.Color]: { defaultValue: { mode: 'palette-classic' } } },
      useCustomConfig: (builder) => {
        for (const [path, defaultValue] of Object.entries(defaults)) {
          builder.addCustomEditor({ ...item(path, path, identityOverrideProcessor), path, defaultValue } as never);
        }
      },
    });
}

function item(id: string, path: string, process: Process): FieldConfigPropertyItem {
  return {
    id,
    path,
    name: id,
    process,
    editor: noEditor,
    override: noEditor,
    shouldApply: () => true,
    settings: {},
  } as unknown as FieldConfigPropertyItem;
}
