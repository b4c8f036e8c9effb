// The explorer as a notebook widget, see vitviz/widget.py.
import { widgetBackend } from './backends/widget.js';
import { inside } from './inside.js';

/**
 * Draw a widget.
 * @param {{model: import('./backends/widget.js').Model, el: HTMLElement}} host - the object that anywidget passes
 * @param {{template: string, style: string, colors: Record<string, string>}} options
 */
export function render({ model, el }, { template, style, colors }) {
  el.innerHTML = template;
  el.dataset.lmSuppressShortcuts = 'true'; // JupyterLab uses the same keys for its cells
  const show = inside(el, { colors, style, models: null,
    backend: widgetBackend({ model, manifest: model.get('manifest') }),
    tell: (selection) => {
      model.set('selection', selection);
      model.save_changes();
    } });
  return show('view').then(() => show.dispose); // anywidget calls the result before it removes the widget
}
