import { ControlsLabel, SceneObjectBase, type SceneComponentProps, type SceneObjectState } from '@grafana/scenes';
import type { dataLayers } from '@grafana/scenes';

interface State extends SceneObjectState {
  layer: dataLayers.AnnotationsDataLayer;
}

/** The name and the switch of an annotation, above the panels. */
export class MarkControl extends SceneObjectBase<State> {
  static Component = ({ model }: SceneComponentProps<MarkControl>) => {
    const { layer } = model.useState();
    const { name, key } = layer.useState();
    return (
      <div style={{ display: 'flex' }}>
        <ControlsLabel htmlFor={`data-layer-${key}`} label={name} />
        <layer.Component model={layer} />
      </div>
    );
  };
}
