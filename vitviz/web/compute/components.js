// Principal components by block Krylov iteration with Rayleigh-Ritz, until the vectors are eigenvectors. Plain power
// iteration would mix axes whose eigenvalues are close, and ONNX has no singular value decomposition.

const COUNT = 3;
const RESIDUAL = 1e-11; // the default tolerance of an eigenvector
const NOTHING = 1e-12; // a remainder shorter than this share of its vector counts as zero
const OFF_DIAGONAL = 1e-26; // tolerated share of off-diagonal entries in the sum of squares

/** A quantile with linear interpolation. @param {ArrayLike<number>} values @param {number} share */
export function percentile(values, share) {
  const sorted = Float64Array.from(values).sort();
  const at = share * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

/** @param {ArrayLike<number>} a @param {ArrayLike<number>} b */
export function dot(a, b) {
  let sum = 0;
  for (let x = 0; x < a.length; x += 1) sum += a[x] * b[x];
  return sum;
}

/** Add a multiple of a vector to another.
 * @param {Float64Array} to @param {number} factor @param {Float64Array} vector */
function add(to, factor, vector) {
  for (let x = 0; x < to.length; x += 1) to[x] += factor * vector[x];
}

/** The linear combination of vectors. @param {ArrayLike<number>} factors @param {Float64Array[]} vectors */
function combined(factors, vectors) {
  const sum = new Float64Array(vectors[0].length);
  vectors.forEach((vector, i) => add(sum, factors[i], vector));
  return sum;
}

/**
 * Eigenvalues and eigenvectors of a symmetric matrix by Jacobi's rotations (Golub and Van Loan, 8.5), largest first.
 * @param {Float64Array[]} matrix - is overwritten
 * @returns {{value: number, vector: Float64Array}[]}
 */
function eigenvectors(matrix) {
  const n = matrix.length;
  const vectors = matrix.map((_, i) => Float64Array.from({ length: n }, (__, j) => Number(i === j)));
  const whole = matrix.reduce((sum, row) => sum + dot(row, row), 0);
  const off = () => matrix.reduce((sum, row, i) => sum + dot(row, row) - row[i] ** 2, 0);
  while (off() > OFF_DIAGONAL * whole) {
    for (let p = 0; p < n; p += 1) {
      for (let q = p + 1; q < n; q += 1) {
        if (matrix[p][q] === 0) continue;
        const cot = (matrix[q][q] - matrix[p][p]) / (2 * matrix[p][q]);
        const tan = (cot < 0 ? -1 : 1) / (Math.abs(cot) + Math.hypot(cot, 1));
        const cos = 1 / Math.hypot(tan, 1);
        const turn = (/** @type {Float64Array} */ a, /** @type {number} */ i, /** @type {Float64Array} */ b,
          /** @type {number} */ j) => {
          const [x, y] = [a[i], b[j]];
          a[i] = cos * (x - tan * y);
          b[j] = cos * (y + tan * x);
        };
        for (let k = 0; k < n; k += 1) turn(matrix[k], p, matrix[k], q);
        for (let k = 0; k < n; k += 1) turn(matrix[p], k, matrix[q], k);
        for (let k = 0; k < n; k += 1) turn(vectors[p], k, vectors[q], k);
      }
    }
  }
  return vectors.map((vector, i) => ({ value: matrix[i][i], vector })).sort((a, b) => b.value - a.value);
}

/** The unit vector of a vector's component orthogonal to an orthonormal basis; null if it is zero.
 * @param {Float64Array} vector @param {Float64Array[]} basis */
function orthogonal(vector, basis) {
  const rest = vector.slice();
  for (let twice = 0; twice < 2; twice += 1) for (const unit of basis) add(rest, -dot(rest, unit), unit);
  const length = Math.sqrt(dot(rest, rest));
  return length > NOTHING * Math.sqrt(dot(vector, vector)) ? rest.map((value) => value / length) : null;
}

/** Tolerance of `principalComponents` for components that become colors, which have 256 steps. */
export const COLOR_TOLERANCE = 1e-5;

/**
 * The first principal components of samples, as in `principal_components` and `point_up` of `vitviz.analysis.tokens`:
 * unit vectors, and their shares of the variance; zeros if the samples have fewer dimensions.
 * @param {Float64Array[]} samples
 * @param {number} [tolerance] - of |A v - value v| for an eigenvector v, relative to the largest eigenvalue
 */
export function principalComponents(samples, tolerance = RESIDUAL) {
  const width = samples[0].length;
  const mean = new Float64Array(width);
  for (const sample of samples) add(mean, 1 / samples.length, sample);
  const centered = samples.map((sample) => sample.map((value, x) => value - mean[x]));
  const total = centered.reduce((sum, sample) => sum + dot(sample, sample), 0);
  const scatter = (/** @type {Float64Array} */ vector) => (
    combined(centered.map((sample) => dot(sample, vector)), centered));
  /** @type {[Float64Array[], Float64Array[]]} */
  const [basis, images] = [[], []]; // orthonormal vectors, and `scatter` of each
  /** @type {Float64Array[]} */
  let next = Array.from({ length: COUNT }, (_, i) => Float64Array.from({ length: width }, (__, x) => (
    Math.sin((x + 1) * (i + 1)))));
  /** @type {{value: number, axis: Float64Array, residual: number}[]} */
  let ritz = [];
  for (let looked = 0, done = false; !done;) {
    const before = basis.length;
    for (const vector of next) {
      const unit = orthogonal(vector, basis);
      if (unit) [basis, images].forEach((list, i) => list.push(i ? scatter(unit) : unit));
    }
    next = images.slice(before);
    const all = basis.length === before; // the samples span no further dimension
    if (!all && basis.length < 1.5 * looked) continue;
    looked = basis.length;
    ritz = eigenvectors(basis.map((unit) => Float64Array.from(images, (image) => dot(unit, image)))).slice(0, COUNT)
      .map(({ value, vector }) => {
        const [axis, residual] = [basis, images].map((list) => combined(vector, list));
        add(residual, -value, axis);
        return { value, axis, residual: Math.sqrt(dot(residual, residual)) };
      });
    done = all || ritz.every(({ residual }) => residual <= tolerance * ritz[0].value);
  }
  const rounding = total * Math.max(width, samples.length) * Number.EPSILON;
  return Array.from({ length: COUNT }, (_, i) => {
    if (!(ritz[i]?.value > rounding)) return { axis: new Float64Array(width), share: 0 };
    const { axis, value } = ritz[i];
    const sign = axis.reduce((sum, number) => sum + number ** 3, 0) < 0 ? -1 : 1;
    return { axis: axis.map((number) => sign * number), share: value / total };
  });
}
