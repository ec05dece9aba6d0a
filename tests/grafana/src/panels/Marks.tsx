import { DataFrameView, type DataFrame } from '@grafana/data';
import type { UPlotConfigBuilder } from '@grafana/ui';
import { useLayoutEffect, useRef } from 'react';

interface Mark {
  time: number;
  timeEnd?: number;
  isRegion?: boolean;
  color: string;
}

type Plot = Parameters<NonNullable<Parameters<typeof UPlotConfigBuilder.prototype.addHook<'draw'>>[1]>>[0];

/** Draw annotations as Grafana does: a dashed line with a triangle under it, and a bar for one that lasts. */
export function Marks({ config, annotations }: { config: UPlotConfigBuilder; annotations: DataFrame[] }) {
  const current = useRef(annotations);
  const plot = useRef<Plot>(null);
  useLayoutEffect(() => {
    config.addHook('draw', (u) => {
      plot.current = u;
      for (const frame of current.current) {
        new DataFrameView<Mark>(frame).forEach((mark) => draw(u, mark));
      }
    });
  }, [config]);
  useLayoutEffect(() => {
    current.current = annotations;
    plot.current?.redraw(false);
  }, [annotations]);
  return null;
}

function draw(u: Plot, { time, timeEnd, isRegion, color }: Mark): void {
  const { ctx, bbox } = u;
  const ratio = window.devicePixelRatio;
  const bottom = bbox.top + bbox.height;
  const ends = isRegion && timeEnd ? [time, timeEnd] : [time];
  const within = (x: number) => x >= bbox.left && x <= bbox.left + bbox.width;
  const at = ends.map((moment) => u.valToPos(moment, 'x', true));
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color;
  ctx.lineWidth = ratio;
  ctx.setLineDash([5 * ratio, 5 * ratio]);
  for (const x of at.filter(within)) {
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bottom);
    ctx.stroke();
  }
  if (at.length === 2) {
    const [left, right] = at.map((x) => Math.min(Math.max(x, bbox.left), bbox.left + bbox.width));
    ctx.fillRect(left, bottom, right - left, 4 * ratio);
  } else if (within(at[0])) {
    ctx.beginPath();
    ctx.moveTo(at[0], bottom);
    ctx.lineTo(at[0] - 4 * ratio, bottom + 6 * ratio);
    ctx.lineTo(at[0] + 4 * ratio, bottom + 6 * ratio);
    ctx.fill();
  }
  ctx.restore();
}
