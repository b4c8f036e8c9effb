// The explorer as a Gradio component, see vitviz/gradio.py.
import { componentBackend } from './backends/component.js';
import { inside } from './inside.js';

/** @typedef {{name: string, photo: {url: string}}} Value - see `Shown` of vitviz/gradio.py */

/**
 * Start a component in `element`, which contains app.html.
 * @param {HTMLElement} element
 * @param {{props: {value: Value | null}, trigger: (event: string, data: any) => void,
 *   server: import('./backends/component.js').Server,
 *   watch: (prop: string, changed: () => void) => void}} host - the object that Gradio passes to a component's script
 * @param {{colors: Record<string, string>, style: string, models: any}} options
 */
export function start(element, { props, trigger, server, watch }, { colors, style, models }) {
  const beside = () => props.value?.photo.url ?? '';
  const show = inside(element, { colors, style, models, backend: componentBackend({ server, beside }),
    tell: (selection, changed) => {
      for (const part of changed) trigger(`select_${part}`, selection);
      trigger('select', { ...selection, index: selection.patch, value: selection.prediction?.label ?? null });
    } });
  const changed = () => show(props.value?.name ?? null);
  watch('value', changed);
  return changed();
}
