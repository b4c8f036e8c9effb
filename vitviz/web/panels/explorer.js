// The panels of the explorer, with and without a server.
import { EdgePanel } from './edge.js';
import { Explain } from './explain.js';
import { Explore } from './explore.js';
import { Frame } from './frame.js';
import { Heads } from './head_statistics.js';
import { Layers } from './layers.js';
import { DecompositionPanel } from './decomposition.js';

/** Panels by the selectors of app.html that they fill. */
export const PANELS = {
  '.vv-explore': Explore, '.vv': Frame, '.vv-explain': Explain, '.vv-heads-view': Heads, '.vv-layers-view': Layers,
  '.vv-sums-view': DecompositionPanel, '.vv-edge': EdgePanel,
};
