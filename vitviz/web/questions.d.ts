/** Arguments of the questions, from the signatures of vitviz.server.endpoints; written by `make tables`. */
interface Asks {
  open: { model?: string | null, size?: number | null, image?: string | null, ahead?: boolean, texts?: string[] | null };
  block: { block: number };
  descriptors: { descriptor?: 'tokens' | 'queries' | 'keys' | 'values', block?: number | null };
  rollout: { token?: number | null, fuse?: 'mean' | 'max' | 'min', discard?: number, residual?: number, start?: number };
  explain: { method?: string, target?: number | string | null, against?: number | null };
  faithfulness: { methods: string[], target?: number | string | null, against?: number | null };
  heads: { names: string[], target?: number | string | null, against?: number | null };
  layers: { target?: number | string | null, against?: number | null };
  intervene: { patches?: number[] | null, heads?: [number, number][] | null, classes?: number[] | null, target?: number | string | null, against?: number | null };
  rearrange: { shuffle?: number, positions?: boolean };
  lecture: { block?: number | null, token?: number | null };
  page: { search?: string, lecture?: boolean };
  models: {};
}
