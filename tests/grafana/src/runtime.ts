/** The services that Grafana's application offers to its packages, as far as a dashboard needs them. */

import {
  DataTopic,
  EventBusSrv,
  LoadingState,
  toDataFrame,
  type DataQueryRequest,
  type DataQueryResponse,
  type DataSourceApi,
  type PanelData,
} from '@grafana/data';
import { setAppEvents, setDataSourceSrv, setPluginImportUtils, setRunRequest } from '@grafana/runtime';
import { sceneGraph, sceneUtils, type SceneObject } from '@grafana/scenes';
import { catchError, from, map, of, startWith, type Observable } from 'rxjs';

import { PLUGIN, UID, type Prometheus } from './prometheus';

/** Make a data source the only one of this Grafana. */
export function provide(source: Prometheus): void {
  const settings = { uid: UID, name: 'Prometheus', type: PLUGIN, meta: source.meta, isDefault: true };
  setAppEvents(new EventBusSrv());
  setDataSourceSrv({
    // A dashboard names its data source by a variable; any other name is an error in the dashboard.
    get: async (ref: { uid?: string } | string | null, scopedVars?: { __sceneObject?: { value: SceneObject } }) => {
      const uid = typeof ref === 'string' ? ref : ref?.uid;
      const scene = scopedVars?.__sceneObject?.value.valueOf() as SceneObject | undefined;
      const chosen = scene && uid ? sceneGraph.interpolate(scene, uid) : uid;
      if (chosen !== UID) {
        throw new Error(`no data source ${chosen}`);
      }
      return source;
    },
    getList: () => [settings],
    getInstanceSettings: () => settings,
    reload: () => undefined,
    registerRuntimeDataSource: () => undefined,
  } as never);
  setRunRequest(run as never);
  setPluginImportUtils({
    importPanelPlugin: (id: string) => Promise.reject(new Error(`this page has no panel of the type ${id}`)),
    getPanelPluginFromCache: () => undefined,
  } as never);
  sceneUtils.registerRuntimeDataSource({ dataSource: source as never });
}

function run(source: DataSourceApi, request: DataQueryRequest, query = source.query): Observable<PanelData> {
  const loading: PanelData = { state: LoadingState.Loading, series: [], annotations: [], timeRange: request.range, request };
  return from(query.call(source, request) as Observable<DataQueryResponse>).pipe(
    map((response): PanelData => {
      const frames = response.data.map((frame) => toDataFrame(frame));
      const isMark = (frame: { meta?: { dataTopic?: DataTopic } }) => frame.meta?.dataTopic === DataTopic.Annotations;
      const [annotations, series] = [frames.filter(isMark), frames.filter((frame) => !isMark(frame))];
      return { ...loading, state: LoadingState.Done, series, annotations };
    }),
    catchError((error: Error) =>
      of({ ...loading, state: LoadingState.Error, error: { message: error.message }, errors: [{ message: error.message }] })
    ),
    startWith(loading)
  );
}
