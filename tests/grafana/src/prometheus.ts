/**
 * The road from a query of a dashboard to frames: what Grafana's Prometheus data source does in its front end and
 * in its server, over Prometheus' own HTTP API.
 */

import {
  dateTime,
  FieldType,
  LoadingState,
  rangeUtil,
  renderLegendFormat,
  type AnnotationEvent,
  type AnnotationQuery,
  type AnnotationSupport,
  type DataFrame,
  type DataQueryRequest,
  type DataQueryResponse,
  type Labels,
  type MetricFindValue,
  type ScopedVars,
  type TimeRange,
} from '@grafana/data';
import { RuntimeDataSource, sceneGraph, type SceneObject } from '@grafana/scenes';
import type { DataQuery } from '@grafana/schema';
import { from, of, type Observable } from 'rxjs';

export interface PrometheusQuery extends DataQuery {
  expr: string;
  legendFormat?: string;
  instant?: boolean;
  interval?: string;
}

interface PrometheusAnnotation extends AnnotationQuery<PrometheusQuery> {
  expr?: string;
  step?: string;
  titleFormat?: string;
  textFormat?: string;
  useValueForTime?: boolean | string;
}

interface Series {
  metric: Labels;
  values?: Array<[number, string]>;
  value?: [number, string];
}

interface Answer {
  status: 'success' | 'error';
  error?: string;
  data: { result: Series[] };
}

/** A query as it was sent, for tests. */
export interface Sent {
  refId: string;
  expr: string;
  stepMs: number;
  series: number;
}

export const PLUGIN = 'prometheus';
export const UID = 'the-prometheus';

/** Steps in an answer that Prometheus gives at most. */
const MOST_POINTS = 11_000;

export class Prometheus extends RuntimeDataSource<PrometheusQuery> {
  /** All queries of panels and annotations that were answered so far. */
  readonly sent: Sent[] = [];
  /** How many questions wait for an answer. */
  waiting = 0;

  /** @param url Base address of the server. @param scrapeInterval What one would write into the data source's settings. */
  constructor(
    private readonly server: string,
    scrapeInterval: string
  ) {
    super(PLUGIN, UID);
    this.interval = scrapeInterval;
    this.annotations = {
      prepareAnnotation: movedToTarget,
      prepareQuery: (annotation: AnnotationQuery) => annotation.target as PrometheusQuery | undefined,
      processEvents: (annotation: AnnotationQuery, frames: DataFrame[]) => of(marks(annotation as PrometheusAnnotation, frames)),
    } as AnnotationSupport<PrometheusQuery>;
  }

  query(request: DataQueryRequest<PrometheusQuery>): Observable<DataQueryResponse> {
    return from(this.answers(request));
  }

  private async answers(request: DataQueryRequest<PrometheusQuery>): Promise<DataQueryResponse> {
    const frames = await Promise.all(request.targets.filter((target) => !target.hide).map((t) => this.ask(t, request)));
    return { data: frames.flat(), state: LoadingState.Done };
  }

  private async ask(query: PrometheusQuery, request: DataQueryRequest<PrometheusQuery>): Promise<DataFrame[]> {
    const stepMs = this.stepMs(request, query.interval);
    const variables = { ...request.scopedVars, ...this.timeVariables(request.range, stepMs) };
    const expr = interpolate(query.expr, variables);
    const [start, end] = [request.range.from.valueOf(), request.range.to.valueOf()];
    const answer = query.instant
      ? await this.get('query', { query: expr, time: String(end / 1000) })
      : await this.get('query_range', {
          query: expr,
          // Aligned to the step, so that the points stay where they are from one refresh to the next.
          start: String((Math.floor(start / stepMs) * stepMs) / 1000),
          end: String((Math.floor(end / stepMs) * stepMs) / 1000),
          step: String(stepMs / 1000),
        });
    const frames = answer.data.result.map((series) => toFrame(series, query, stepMs));
    this.sent.push({ refId: query.refId, expr, stepMs, series: frames.length });
    return frames;
  }

  /** Answer the query of a variable: `label_values(metric, label)` or `query_result(expression)`. */
  async metricFindQuery(query: string | { query: string }, options?: { range?: TimeRange; scopedVars?: ScopedVars }) {
    const range = options?.range ?? { from: dateTime().subtract(1, 'h'), to: dateTime(), raw: { from: '', to: '' } };
    const scoped = { ...options?.scopedVars, ...this.timeVariables(range, 1000) };
    const text = interpolate(typeof query === 'string' ? query : query.query, scoped);
    const [start, end] = [range.from.valueOf() / 1000, range.to.valueOf() / 1000].map(String);
    const values = /^label_values\((.*),\s*([a-zA-Z_]\w*)\)\s*$/s.exec(text);
    if (values) {
      const found = await this.getJson(`label/${values[2]}/values`, { 'match[]': values[1], start, end });
      return (found.data as string[]).map((value): MetricFindValue => ({ text: value }));
    }
    const result = /^query_result\((.*)\)\s*$/s.exec(text);
    if (result) {
      const answer = await this.get('query', { query: result[1], time: end });
      return answer.data.result.map(({ metric, value }): MetricFindValue => {
        const { __name__: name = '', ...labels } = metric;
        const inside = Object.entries(labels).map(([label, content]) => `${label}="${content}"`);
        return { text: `${name}{${inside.join(',')}} ${value?.[1]} ${(value?.[0] ?? 0) * 1000}` };
      });
    }
    throw new Error(`unknown query of a variable: ${text}`);
  }

  /** The step that Grafana's server chooses: what the panel wants (a point a pixel), but not finer than the scrapes. */
  private stepMs(request: DataQueryRequest<PrometheusQuery>, minimum?: string): number {
    const finest = rangeUtil.intervalToMs(minimum ? interpolate(minimum, request.scopedVars) : this.interval!);
    const rangeMs = request.range.to.valueOf() - request.range.from.valueOf();
    return Math.max(request.intervalMs, finest, Math.ceil(rangeMs / MOST_POINTS / 1000) * 1000);
  }

  private timeVariables(range: TimeRange, stepMs: number): ScopedVars {
    const scrapeMs = rangeUtil.intervalToMs(this.interval!);
    const rangeMs = range.to.valueOf() - range.from.valueOf();
    const values: Record<string, string> = {
      __interval: duration(stepMs),
      __interval_ms: String(stepMs),
      __rate_interval: duration(Math.max(stepMs + scrapeMs, 4 * scrapeMs)),
      __range: duration(Math.round(rangeMs / 1000) * 1000),
      __range_s: String(Math.round(rangeMs / 1000)),
      __range_ms: String(rangeMs),
    };
    return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, { text: value, value }]));
  }

  private async get(path: string, query: Record<string, string>): Promise<Answer> {
    return (await this.getJson(path, query)) as Answer;
  }

  private async getJson(path: string, query: Record<string, string>): Promise<{ data: unknown }> {
    this.waiting += 1;
    const response = await fetch(`${this.server}/api/v1/${path}?${new URLSearchParams(query)}`);
    const answer = await response.json().finally(() => (this.waiting -= 1));
    if (answer.status !== 'success') {
      throw new Error(`${answer.error} for ${JSON.stringify(query)}`);
    }
    return answer;
  }
}

function duration(milliseconds: number): string {
  return milliseconds % 1000 ? `${milliseconds}ms` : `${milliseconds / 1000}s`;
}

/** Fill in variables as Grafana's Prometheus data source does: several values become an alternative of a regex. */
function interpolate(text: string, scopedVars: ScopedVars): string {
  const scene = scopedVars.__sceneObject?.value.valueOf() as SceneObject | undefined;
  if (!scene) {
    throw new Error(`no scene for ${text}`);
  }
  return sceneGraph.interpolate(scene, text, scopedVars, (value: unknown) =>
    Array.isArray(value)
      ? value.length === 1
        ? escapeRegex(value[0])
        : `(${value.map(escapeRegex).join('|')})`
      : String(value)
  );
}

function escapeRegex(value: string): string {
  return value.replace(/[\\^$*+?.()|[\]{}]/g, '\\\\$&');
}

function toFrame(series: Series, query: PrometheusQuery, stepMs: number): DataFrame {
  const points = series.values ?? (series.value ? [series.value] : []);
  const legend = query.legendFormat ?? '__auto';
  return {
    refId: query.refId,
    length: points.length,
    meta: { executedQueryString: `Expr: ${query.expr}\nStep: ${duration(stepMs)}` },
    fields: [
      {
        name: 'Time',
        type: FieldType.time,
        // Where points are missing for longer than this, the line has a gap.
        config: { interval: stepMs },
        values: points.map(([seconds]) => seconds * 1000),
      },
      {
        name: 'Value',
        type: FieldType.number,
        config: legend === '__auto' ? {} : { displayNameFromDS: renderLegendFormat(legend, series.metric) },
        labels: series.metric,
        values: points.map(([, value]) => number(value)),
      },
    ],
  };
}

function number(text: string): number {
  const special: Record<string, number> = { '+Inf': Infinity, '-Inf': -Infinity, NaN };
  return special[text] ?? Number(text);
}

/** Today's Grafana reads the query of an annotation from its target, and takes older files into this form. */
function movedToTarget(json: PrometheusAnnotation): AnnotationQuery<PrometheusQuery> {
  const { expr, step, target, ...others } = json;
  const moved = { ...target, refId: target?.refId ?? 'Anno', expr: target?.expr || expr || '' };
  return { ...others, target: { ...moved, interval: target?.interval || step || '' } } as never;
}

/** Turn samples into marks; samples at most a step apart are one mark that lasts. */
function marks(annotation: PrometheusAnnotation, frames: DataFrame[]): AnnotationEvent[] {
  const stepText = /Step: (\w+)/.exec(frames[0]?.meta?.executedQueryString ?? '')?.[1] ?? '60s';
  const stepMs = rangeUtil.intervalToMs(stepText);
  return frames.flatMap((frame) => {
    const [times, values] = frame.fields;
    const labels = values.labels ?? {};
    const at: number[] = annotation.useValueForTime
      ? values.values.map((value: number) => Math.floor(value))
      : times.values.filter((_: number, index: number) => values.values[index] > 0);
    const events: AnnotationEvent[] = [];
    for (const time of at) {
      const last = events.at(-1);
      if (last && last.timeEnd! + stepMs >= time) {
        last.timeEnd = time;
      } else {
        const [title, text] = [annotation.titleFormat, annotation.textFormat];
        events.push({
          time,
          timeEnd: time,
          title: title && renderLegendFormat(title, labels),
          text: text && renderLegendFormat(text, labels),
        });
      }
    }
    return events;
  });
}
