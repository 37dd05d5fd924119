//! A small network that reads handwritten digits: 64 pixels, 32 hidden units (tanh), 10 classes (softmax, cross entropy).
//!
//! No communication here: [`Model::gradient`] gives *sums* over the images it is asked about, so that the sums of several PEs add
//! up to the sum over the whole batch; [`Model::apply`] divides by the size of the whole batch.
//!
//! Invariant: parameters and gradients are `f32`, since that is what PEs exchange; all arithmetic between them is `f64`. So a
//! batch that is cut into shares differs from the whole only by the rounding of one `f32` per share and parameter.

use crate::digits::{CLASSES, Digits, PIXELS, SplitMix64};

/// Hidden units.
pub const HIDDEN: usize = 32;

/// Parameters of the network, and elements of a gradient.
pub const PARAMETERS: usize = HIDDEN * PIXELS + HIDDEN + CLASSES * HIDDEN + CLASSES;

/// A step that learns well with batches of [`crate::digits::BATCH`]: 30 epochs read more than 96 % of the test images right.
/// Four times this diverges.
pub const LEARNING_RATE: f64 = 0.5;

/// The network: one list of numbers, so that a gradient is one buffer for one all-reduce.
///
/// In this order: weights from pixels to hidden units (`HIDDEN` rows of `PIXELS`), biases of the hidden units, weights from hidden
/// units to classes (`CLASSES` rows of `HIDDEN`), biases of the classes.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    parameters: Vec<f32>,
}

/// How many images of a set were read right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accuracy {
    /// Images whose digit the network named.
    pub correct: usize,
    /// Images asked about.
    pub images: usize,
}

impl Accuracy {
    /// The share of images that were read right, in 0.0..=1.0; 0.0 where none was asked about.
    pub fn fraction(&self) -> f64 {
        self.correct as f64 / self.images.max(1) as f64
    }
}

/// The parts of a list of [`PARAMETERS`] numbers.
struct Parts<'a, T> {
    to_hidden: &'a [T],
    hidden_bias: &'a [T],
    to_class: &'a [T],
    class_bias: &'a [T],
}

impl<'a, T> Parts<'a, T> {
    fn of(list: &'a [T]) -> Self {
        let (to_hidden, rest) = list.split_at(HIDDEN * PIXELS);
        let (hidden_bias, rest) = rest.split_at(HIDDEN);
        let (to_class, class_bias) = rest.split_at(CLASSES * HIDDEN);
        Self { to_hidden, hidden_bias, to_class, class_bias }
    }
}

impl Model {
    /// A network to be trained: weights even in ±1/√inputs of their unit, biases zero; the same on every PE for the same `seed`.
    pub fn new(seed: u64) -> Self {
        let mut generator = SplitMix64::new(seed);
        let mut parameters = Vec::with_capacity(PARAMETERS);
        for (units, inputs) in [(HIDDEN, PIXELS), (CLASSES, HIDDEN)] {
            let bound = 1.0 / (inputs as f64).sqrt();
            parameters.extend((0..units * inputs).map(|_| ((2.0 * generator.next_f64() - 1.0) * bound) as f32));
            parameters.extend(std::iter::repeat_n(0.0, units));
        }
        Self { parameters }
    }

    /// The parameters, [`PARAMETERS`] of them.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// The parameters, to be overwritten: by those of another PE, for one.
    pub fn parameters_mut(&mut self) -> &mut [f32] {
        &mut self.parameters
    }

    /// Adds up over `samples`: the derivatives of the loss by every parameter into `out`, and the loss, which is returned.
    ///
    /// The loss of one image is minus the natural logarithm of the probability that the network gives to its digit. `out` is
    /// overwritten; without samples it becomes zero and so is the loss. Nothing is divided by the number of samples: see
    /// [`Model::apply`].
    ///
    /// # Panics
    /// If `out` is not of [`PARAMETERS`] elements or a sample is not an image of `digits`.
    pub fn gradient(&self, digits: &Digits, samples: &[usize], out: &mut [f32]) -> f64 {
        assert_eq!(out.len(), PARAMETERS, "gradient: found a buffer of {} elements; expected one per parameter", out.len());
        let model = Parts::of(&self.parameters);
        let mut to_hidden = vec![0.0_f64; HIDDEN * PIXELS];
        let mut hidden_bias = [0.0_f64; HIDDEN];
        let mut to_class = [[0.0_f64; HIDDEN]; CLASSES];
        let mut class_bias = [0.0_f64; CLASSES];
        let mut loss = 0.0;

        for &sample in samples {
            let image = digits.image(sample);
            let (hidden, mut by_score, sample_loss) = self.forward(image, digits.label(sample));
            loss += sample_loss;
            // Softmax and cross entropy together: the derivative by a score is the probability, less one for the right digit.
            by_score[digits.label(sample)] -= 1.0;

            let mut by_hidden = [0.0; HIDDEN];
            for (class, &by) in by_score.iter().enumerate() {
                class_bias[class] += by;
                let weights = &model.to_class[class * HIDDEN..(class + 1) * HIDDEN];
                for unit in 0..HIDDEN {
                    to_class[class][unit] += by * hidden[unit];
                    by_hidden[unit] += by * f64::from(weights[unit]);
                }
            }
            for unit in 0..HIDDEN {
                let by = by_hidden[unit] * (1.0 - hidden[unit] * hidden[unit]);
                hidden_bias[unit] += by;
                let row = &mut to_hidden[unit * PIXELS..(unit + 1) * PIXELS];
                for (sum, &pixel) in row.iter_mut().zip(image) {
                    *sum += by * f64::from(pixel);
                }
            }
        }

        let sums = to_hidden.iter().chain(&hidden_bias).chain(to_class.as_flattened()).chain(&class_bias);
        for (out, &sum) in out.iter_mut().zip(sums) {
            *out = sum as f32;
        }
        loss
    }

    /// One step against the gradient: `gradient` is the sum over `images` images, of all PEs together.
    ///
    /// # Panics
    /// If `gradient` is not of [`PARAMETERS`] elements or `images` is zero.
    pub fn apply(&mut self, gradient: &[f32], images: usize, learning_rate: f64) {
        assert_eq!(
            gradient.len(),
            PARAMETERS,
            "apply: found a gradient of {} elements; expected one per parameter",
            gradient.len()
        );
        assert!(images > 0, "apply: found a sum over 0 images; expected at least 1");
        let step = learning_rate / images as f64;
        for (parameter, &by) in self.parameters.iter_mut().zip(gradient) {
            *parameter = (f64::from(*parameter) - step * f64::from(by)) as f32;
        }
    }

    /// The loss added up over `samples`, as [`Model::gradient`] returns it, without the work for the gradient.
    ///
    /// # Panics
    /// If a sample is not an image of `digits`.
    pub fn loss(&self, digits: &Digits, samples: &[usize]) -> f64 {
        samples.iter().map(|&sample| self.forward(digits.image(sample), digits.label(sample)).2).sum()
    }

    /// How many of `samples` the network reads right.
    ///
    /// # Panics
    /// If a sample is not an image of `digits`.
    pub fn accuracy(&self, digits: &Digits, samples: &[usize]) -> Accuracy {
        let right = |&&sample: &&usize| {
            let label = digits.label(sample);
            let (_, probabilities, _) = self.forward(digits.image(sample), label);
            probabilities.iter().enumerate().all(|(class, &other)| class == label || other < probabilities[label])
        };
        Accuracy { correct: samples.iter().filter(right).count(), images: samples.len() }
    }

    /// Hidden units, probabilities of the digits, and loss for one image.
    fn forward(&self, image: &[f32; PIXELS], label: usize) -> ([f64; HIDDEN], [f64; CLASSES], f64) {
        let model = Parts::of(&self.parameters);
        let mut hidden = [0.0; HIDDEN];
        for (unit, value) in hidden.iter_mut().enumerate() {
            let weights = &model.to_hidden[unit * PIXELS..(unit + 1) * PIXELS];
            let mut sum = f64::from(model.hidden_bias[unit]);
            for (&weight, &pixel) in weights.iter().zip(image) {
                sum += f64::from(weight) * f64::from(pixel);
            }
            *value = sum.tanh();
        }
        let mut scores = [0.0; CLASSES];
        for (class, score) in scores.iter_mut().enumerate() {
            let weights = &model.to_class[class * HIDDEN..(class + 1) * HIDDEN];
            *score = f64::from(model.class_bias[class]);
            for (&weight, &value) in weights.iter().zip(&hidden) {
                *score += f64::from(weight) * value;
            }
        }
        // Less the greatest score, so that no exponential overflows.
        let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exponentials = scores.map(|score| (score - greatest).exp());
        let total: f64 = exponentials.iter().sum();
        let loss = total.ln() - (scores[label] - greatest);
        (hidden, exponentials.map(|value| value / total), loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digits::{BATCH, Split, share};

    const SEED: u64 = 1;

    fn data() -> (Digits, Split) {
        let digits = Digits::embedded().unwrap();
        let split = digits.split(SEED).unwrap();
        (digits, split)
    }

    /// The sum over a batch as `ranks` PEs make it: each its share, added in `f32`.
    fn summed(model: &Model, digits: &Digits, batch: &[usize], ranks: usize, out: &mut [f32]) -> f64 {
        let mut part = vec![0.0; PARAMETERS];
        out.fill(0.0);
        (0..ranks)
            .map(|rank| {
                let samples = &batch[share(batch.len(), rank, ranks)];
                let loss = model.gradient(digits, samples, &mut part);
                for (sum, part) in out.iter_mut().zip(&part) {
                    *sum += part;
                }
                loss
            })
            .sum()
    }

    fn trained(ranks: usize, epochs: u64) -> (Model, f64) {
        let (digits, split) = data();
        let mut model = Model::new(SEED);
        let mut gradient = vec![0.0; PARAMETERS];
        for epoch in 0..epochs {
            for batch in split.batches(SEED, epoch) {
                summed(&model, &digits, &batch, ranks, &mut gradient);
                model.apply(&gradient, batch.len(), LEARNING_RATE);
            }
        }
        let loss = model.loss(&digits, &split.train) / split.train.len() as f64;
        (model, loss)
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let (digits, split) = data();
        let samples = &split.train[..16];
        let mut model = Model::new(SEED);
        let mut gradient = vec![0.0; PARAMETERS];
        let loss = model.gradient(&digits, samples, &mut gradient);
        assert!((loss - model.loss(&digits, samples)).abs() < 1e-12);

        // Of every part, some that are not the slopes of a pixel that is always white.
        let mut compared = 0;
        for index in (0..PARAMETERS).step_by(7).chain(PARAMETERS - 60..PARAMETERS) {
            let here = model.parameters[index];
            let [above, below] = [here + 1e-3, here - 1e-3];
            model.parameters[index] = above;
            let loss_above = model.loss(&digits, samples);
            model.parameters[index] = below;
            let loss_below = model.loss(&digits, samples);
            model.parameters[index] = here;

            let slope = (loss_above - loss_below) / (f64::from(above) - f64::from(below));
            let found = f64::from(gradient[index]);
            assert!((slope - found).abs() < 1e-5 * (1.0 + slope.abs()), "parameter {index}: slope {slope}, gradient {found}");
            compared += usize::from(slope != 0.0);
        }
        assert!(compared > 250, "only {compared} slopes were not zero");
    }

    #[test]
    fn gradients_of_shares_add_up_to_the_gradient_of_the_batch() {
        let (digits, split) = data();
        let model = Model::new(SEED);
        let batch = &split.train[..BATCH];
        let mut whole = vec![0.0; PARAMETERS];
        let loss = model.gradient(&digits, batch, &mut whole);
        let largest = whole.iter().fold(0.0_f32, |most, by| most.max(by.abs()));
        for ranks in [1, 2, 3, 7, 8, 241] {
            let mut sum = vec![0.0; PARAMETERS];
            let summed_loss = summed(&model, &digits, batch, ranks, &mut sum);
            assert!((summed_loss - loss).abs() < 1e-9 * loss);
            for (index, (sum, whole)) in sum.iter().zip(&whole).enumerate() {
                // One rounding per share, each of half a unit in the last place of a partial sum.
                let bound = ranks as f32 * f32::EPSILON * largest;
                assert!((sum - whole).abs() <= bound, "{ranks} shares, parameter {index}: {sum} and {whole}");
            }
        }
    }

    #[test]
    fn no_samples_give_a_gradient_of_zero() {
        let (digits, _) = data();
        let mut gradient = vec![1.0; PARAMETERS];
        assert_eq!(Model::new(SEED).gradient(&digits, &[], &mut gradient), 0.0);
        assert!(gradient.iter().all(|&by| by == 0.0));
    }

    #[test]
    fn one_pe_learns_to_read_digits_it_never_saw() {
        let (digits, split) = data();
        let untrained = Model::new(SEED).accuracy(&digits, &split.test);
        assert!(untrained.fraction() < 0.3, "{untrained:?} before training");
        let (model, loss) = trained(1, 30);
        let accuracy = model.accuracy(&digits, &split.test);
        assert!(accuracy.fraction() > 0.93, "{accuracy:?}");
        assert!(loss < 0.2, "loss {loss}");
    }

    #[test]
    fn any_number_of_pes_reaches_the_same_loss() {
        let (_, alone) = trained(1, 4);
        for ranks in [2, 3, 7, 8] {
            let (_, together) = trained(ranks, 4);
            assert!((together - alone).abs() < 1e-5 * alone, "{ranks} PEs: {together}, one PE: {alone}");
        }
    }

    #[test]
    fn the_first_weights_follow_the_seed() {
        assert_eq!(Model::new(1), Model::new(1));
        assert_ne!(Model::new(1), Model::new(2));
        assert_eq!(Model::new(1).parameters().len(), PARAMETERS);
    }

    #[test]
    #[should_panic(expected = "gradient: found a buffer of 3 elements")]
    fn a_buffer_of_another_length_is_refused() {
        let (digits, _) = data();
        Model::new(SEED).gradient(&digits, &[0], &mut [0.0; 3]);
    }

    #[test]
    #[should_panic(expected = "apply: found a sum over 0 images")]
    fn a_step_over_no_images_is_refused() {
        Model::new(SEED).apply(&[0.0; PARAMETERS], 0, LEARNING_RATE);
    }
}
