/** From the JSON of a dashboard to a scene. What the JSON may hold and this does not know is an error, not left out. */

import {
  behaviors,
  dataLayers,
  DataSourceVariable,
  EmbeddedScene,
  QueryVariable,
  SceneControlsSpacer,
  SceneDataLayerSet,
  SceneGridItem,
  SceneGridLayout,
  SceneGridRow,
  SceneQueryRunner,
  SceneRefreshPicker,
  SceneTimePicker,
  SceneTimeRange,
  SceneVariableSet,
  VariableValueSelectors,
  VizPanel,
} from '@grafana/scenes';
import type { AnnotationQuery, Dashboard, Panel, RowPanel, VariableModel } from '@grafana/schema';

import { MarkControl } from './MarkControl';

/** What the address of the page asks for, as in Grafana: the time range, and `var-` with the name of a variable. */
export interface Asked {
  from: string;
  to: string;
  variables: Record<string, string[]>;
  /** Whether annotations are switched on. */
  marks: boolean;
}

type AnyPanel = Panel | RowPanel;

export function toScene(dashboard: Dashboard, asked: Asked): EmbeddedScene {
  const marks = (dashboard.annotations?.list ?? []).map((query) => toLayer(query, asked.marks));
  return new EmbeddedScene({
    $timeRange: new SceneTimeRange({ from: asked.from, to: asked.to, timeZone: dashboard.timezone }),
    $variables: new SceneVariableSet({
      variables: (dashboard.templating?.list ?? []).map((model) => toVariable(model, asked.variables[model.name])),
    }),
    $data: new SceneDataLayerSet({ layers: marks }),
    $behaviors: [new behaviors.CursorSync({ sync: dashboard.graphTooltip as number })],
    controls: [
      new VariableValueSelectors({}),
      ...marks.map((layer) => new MarkControl({ layer })),
      new SceneControlsSpacer(),
      new SceneTimePicker({}),
      new SceneRefreshPicker({ refresh: '' }),
    ],
    body: toGrid(dashboard.panels as AnyPanel[]),
  });
}

function toVariable(model: VariableModel, values?: string[]): DataSourceVariable | QueryVariable {
  const { name, label, multi: isMulti, includeAll, allValue, hide } = model;
  // In the JSON "All" is the word $__all.
  const value = values ?? model.current?.value ?? '';
  const common = { name, label, isMulti, includeAll, allValue, hide: hide as number | undefined, value, text: value };
  if (model.type === 'datasource') {
    return new DataSourceVariable({ ...common, pluginId: model.query as string, regex: model.regex, value: '', text: '' });
  }
  if (model.type === 'query') {
    const { datasource, query, refresh, regex, sort } = model;
    return new QueryVariable({ ...common, datasource, query: query as string, refresh, regex, sort });
  }
  throw new Error(`unknown type of a variable: ${model.type}`);
}

function toLayer(query: AnnotationQuery, isWanted: boolean) {
  return new dataLayers.AnnotationsDataLayer({
    name: query.name,
    isEnabled: query.enable && isWanted,
    isHidden: query.hide,
    query: query as never,
  });
}

function toGrid(panels: AnyPanel[]): SceneGridLayout {
  const children: Array<SceneGridItem | SceneGridRow> = [];
  let row: SceneGridRow | undefined;
  for (const panel of panels) {
    if (panel.type === 'row') {
      row = toRow(panel as RowPanel);
      children.push(row);
    } else {
      const item = toItem(panel as Panel);
      if (row) {
        row.setState({ children: [...row.state.children, item] });
      } else {
        children.push(item);
      }
    }
  }
  return new SceneGridLayout({ isLazy: false, children });
}

function toRow({ title, collapsed, gridPos, panels }: RowPanel): SceneGridRow {
  const children = (panels ?? []).map((panel) => toItem(panel as Panel));
  // Opened, so that everything is on the picture.
  return new SceneGridRow({ title, isCollapsible: true, isCollapsed: false, y: gridPos?.y ?? 0, children }).clone(
    collapsed && !children.length ? { isCollapsed: true } : {}
  );
}

const KNOWN = new Set([
  'id', 'type', 'title', 'description', 'transparent', 'datasource', 'gridPos', 'targets', 'options', 'fieldConfig',
  'repeatDirection', 'interval', 'links',
]); // prettier-ignore

function toItem(panel: Panel): SceneGridItem {
  const unknown = Object.keys(panel).filter((key) => !KNOWN.has(key));
  if (unknown.length) {
    throw new Error(`panel "${panel.title}" has ${unknown}, which this page cannot show`);
  }
  const { x, y, w, h } = panel.gridPos!;
  return new SceneGridItem({
    x,
    y,
    width: w,
    height: h,
    isDraggable: false,
    isResizable: false,
    body: new VizPanel({
      key: `panel-${panel.id}`,
      pluginId: panel.type,
      title: panel.title ?? '',
      description: panel.description,
      displayMode: panel.transparent ? 'transparent' : 'default',
      options: panel.options as never,
      fieldConfig: panel.fieldConfig as never,
      $data: new SceneQueryRunner({
        datasource: panel.datasource,
        queries: (panel.targets ?? []) as never,
        maxDataPointsFromWidth: true,
        minInterval: panel.interval,
      }),
    }),
  });
}
